# Large test data is tracked compressed: tests/data/<area>/<file>.zst or .xz unpacks to <build>/testdata/<area>/<file>.
# Depend on the target test_data; layer tests do so by themselves.
find_program(NIBBLE_ZSTD zstd REQUIRED)
file(GLOB_RECURSE packed_files CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/data/*.zst ${CMAKE_SOURCE_DIR}/tests/data/*.xz)
set(unpacked_files)
foreach(packed IN LISTS packed_files)
  file(RELATIVE_PATH name ${CMAKE_SOURCE_DIR}/tests/data ${packed})
  string(REGEX REPLACE "\\.(zst|xz)$" "" name ${name})
  set(unpacked ${CMAKE_BINARY_DIR}/testdata/${name})
  get_filename_component(folder ${unpacked} DIRECTORY)
  add_custom_command(
    OUTPUT ${unpacked}
    COMMAND ${CMAKE_COMMAND} -E make_directory ${folder}
    COMMAND ${NIBBLE_ZSTD} -d -q -f ${packed} -o ${unpacked}
    COMMAND ${CMAKE_COMMAND} -E touch ${unpacked}  # zstd copies the packed file's time
    DEPENDS ${packed}
    COMMENT "Unpacking ${name}"
    VERBATIM)
  list(APPEND unpacked_files ${unpacked})
endforeach()
# A tokenizer of 128,000 tokens is tracked without what follows from its vocabulary.
find_package(Python3 REQUIRED COMPONENTS Interpreter)
set(tokenizer ${CMAKE_BINARY_DIR}/testdata/tokenizer/deepseek_v3_tokenizer)
set(expand ${CMAKE_SOURCE_DIR}/tests/data/tokenizer/expand.py)
add_custom_command(
  OUTPUT ${tokenizer}.json
  COMMAND ${Python3_EXECUTABLE} ${expand} ${tokenizer}_compact.json ${tokenizer}.json
  DEPENDS ${tokenizer}_compact.json ${expand}
  COMMENT "Expanding deepseek_v3_tokenizer.json"
  VERBATIM)
list(APPEND unpacked_files ${tokenizer}.json)
add_custom_target(test_data DEPENDS ${unpacked_files})
