# The CUDA backend: each GPU generation is compiled for exactly itself, never for "newest known".
set(CMAKE_CUDA_ARCHITECTURES OFF)  # every object library names its own
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)  # programs need a driver, no toolkit
enable_language(CUDA)
set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")  # CMake 3.25 does not know the dialects of nvcc 13
set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
set(CMAKE_CUDA_STANDARD 20)
find_package(CUDAToolkit 13.0 REQUIRED)

# Folders whose files are built only where NIBBLE_CUDA_ARCHS names their generation; what is in sm90/ always is.
set(NIBBLE_CUDA_OPTIONAL_GENERATIONS 100 120)
# Folders for any generation that has bulk copies: from sm_90 on.
set(NIBBLE_CUDA_FROM_SM90 "/stream_read/")

# The device layer refuses GPUs that the build has no code for.
list(JOIN NIBBLE_CUDA_ARCHS "," NIBBLE_CUDA_ARCHS_TEXT)
set_source_files_properties(${CMAKE_SOURCE_DIR}/src/device/cuda/cuda_device.cpp PROPERTIES
                            COMPILE_DEFINITIONS "NIBBLE_CUDA_ARCHS=\"${NIBBLE_CUDA_ARCHS_TEXT}\"")

# cuda_architecture(result 90): what code for a generation is compiled for. The family targets 100f and 120f cover
# what the records of those generations claim: B200 and B300, RTX 50 and GB10.
function(cuda_architecture result generation)
  set(architecture ${generation}a)
  foreach(entry IN LISTS NIBBLE_CUDA_ARCHS)
    if(entry MATCHES "^${generation}[af]$")
      set(architecture ${entry})
    endif()
  endforeach()
  set(${result} ${architecture} PARENT_SCOPE)
endfunction()

# is_cuda_generation_built(result 120)
function(is_cuda_generation_built result generation)
  set(built OFF)
  if("${NIBBLE_CUDA_ARCHS}" MATCHES "(^|;)${generation}[af]?(;|$)" OR NOT generation IN_LIST NIBBLE_CUDA_OPTIONAL_GENERATIONS)
    set(built ON)
  endif()
  set(${result} ${built} PARENT_SCOPE)
endfunction()

# add_cuda_sources(nibble_kernels a.cu sm90/b.cu ...)
#
# Links the kernels into the layer, one object library per generation: files under smNN/ are built for generation NN
# alone, others for each of NIBBLE_CUDA_ARCHS (that has what they need, see above).
function(add_cuda_sources target)
  target_link_libraries(${target} PUBLIC CUDA::cudart_static)
  set(any ${ARGN})
  list(FILTER any EXCLUDE REGEX "/sm[0-9]+/")
  set(from_sm90 ${any})
  list(FILTER from_sm90 INCLUDE REGEX "${NIBBLE_CUDA_FROM_SM90}")
  list(FILTER any EXCLUDE REGEX "${NIBBLE_CUDA_FROM_SM90}")
  list(TRANSFORM NIBBLE_CUDA_ARCHS APPEND "-real" OUTPUT_VARIABLE all)
  add_cuda_objects(${target} any "${all}" ${any})
  list(FILTER all EXCLUDE REGEX "^[78][0-9]")
  add_cuda_objects(${target} from_sm90 "${all}" ${from_sm90})
  foreach(generation IN ITEMS 90 ${NIBBLE_CUDA_OPTIONAL_GENERATIONS})
    is_cuda_generation_built(built ${generation})
    if(built)
      set(sources ${ARGN})
      list(FILTER sources INCLUDE REGEX "/sm${generation}/")
      cuda_architecture(architecture ${generation})
      add_cuda_objects(${target} sm${generation} ${architecture}-real ${sources})
    endif()
  endforeach()
endfunction()

function(add_cuda_objects target name architectures)
  if(NOT ARGN OR NOT architectures)
    return()
  endif()
  add_library(${target}_${name} OBJECT ${ARGN})
  set_target_properties(${target}_${name} PROPERTIES CUDA_ARCHITECTURES "${architectures}")
  target_include_directories(${target}_${name} PRIVATE ${CMAKE_SOURCE_DIR}/src)
  target_compile_options(${target}_${name} PRIVATE
    -Xcompiler=-Wall,-Wextra,-Wno-missing-field-initializers -Xptxas=-w)
  target_link_libraries(${target}_${name} PRIVATE fmt::fmt)
  target_sources(${target} PRIVATE $<TARGET_OBJECTS:${target}_${name}>)
endfunction()

# Drops from the named list of sources what the generations of this build leave out: smNN/cuda_*.cpp where NN is not built, and
# smNN/not_built.cpp, which stands in for them, where it is. Without the backend nothing is built.
function(filter_cuda_generations list_name)
  set(files ${${list_name}})
  foreach(generation IN ITEMS ${NIBBLE_CUDA_OPTIONAL_GENERATIONS})
    is_cuda_generation_built(built ${generation})
    if(built)
      list(FILTER files EXCLUDE REGEX "/cuda/sm${generation}/not_built\\.cpp$")
    else()
      list(FILTER files EXCLUDE REGEX "/cuda/sm${generation}/cuda_[^/]*\\.cpp$")
    endif()
  endforeach()
  set(${list_name} ${files} PARENT_SCOPE)
endfunction()
