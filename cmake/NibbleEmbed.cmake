# embed_files(TARGET nibble_server FUNCTION nibble::server::status_page_text HEADER server/status_page.h
#             DIRECTORY src/server/status_page FILES index.html page.css)
#
# Adds to TARGET a generated source that defines FUNCTION of HEADER: std::string_view (std::string_view name), the text
# of the file of that name, or an empty view. The files are ASCII.
function(embed_files)
  cmake_parse_arguments(ARG "" "TARGET;FUNCTION;HEADER;DIRECTORY" "FILES" ${ARGN})
  get_filename_component(name ${ARG_DIRECTORY} NAME)
  set(output ${CMAKE_CURRENT_BINARY_DIR}/${name}_files.cpp)
  list(TRANSFORM ARG_FILES PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/${ARG_DIRECTORY}/ OUTPUT_VARIABLE paths)
  string(REPLACE ";" "," joined "${paths}")
  add_custom_command(
    OUTPUT ${output}
    COMMAND ${CMAKE_COMMAND} -DOUTPUT=${output} -DFUNCTION=${ARG_FUNCTION} -DHEADER=${ARG_HEADER} -DFILES=${joined}
            -P ${CMAKE_SOURCE_DIR}/cmake/WriteEmbedded.cmake
    DEPENDS ${paths} ${CMAKE_SOURCE_DIR}/cmake/WriteEmbedded.cmake
    VERBATIM)
  target_sources(${ARG_TARGET} PRIVATE ${output})
endfunction()
