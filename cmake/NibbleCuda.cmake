# The CUDA backend: each GPU generation is compiled for exactly itself, never for "newest known".
set(CMAKE_CUDA_ARCHITECTURES OFF)  # every object library names its own
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)  # programs need a driver, no toolkit
enable_language(CUDA)
set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")  # CMake 3.25 does not know the dialects of nvcc 13
set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
set(CMAKE_CUDA_STANDARD 20)
find_package(CUDAToolkit 13.0 REQUIRED)

# add_cuda_sources(nibble_kernels a.cu sm90/b.cu ...)
#
# Links the kernels into the layer. A file under sm90/ is built for sm_90a, others for every generation of
# NIBBLE_CUDA_ARCHS.
function(add_cuda_sources target)
  target_link_libraries(${target} PUBLIC CUDA::cudart_static)
  foreach(folder IN ITEMS sm90 any)
    set(sources ${ARGN})
    if(folder STREQUAL "any")
      list(FILTER sources EXCLUDE REGEX "/sm[0-9]+/")
      set(architectures ${NIBBLE_CUDA_ARCHS})
    else()
      list(FILTER sources INCLUDE REGEX "/${folder}/")
      string(REPLACE "sm" "" architectures ${folder})
      string(APPEND architectures "a-real")
    endif()
    if(sources)
      add_library(${target}_${folder} OBJECT ${sources})
      set_target_properties(${target}_${folder} PROPERTIES CUDA_ARCHITECTURES "${architectures}")
      target_include_directories(${target}_${folder} PRIVATE ${CMAKE_SOURCE_DIR}/src)
      target_compile_options(${target}_${folder} PRIVATE -Xcompiler=-Wall,-Wextra -Xptxas=-w)
      target_link_libraries(${target}_${folder} PRIVATE fmt::fmt)
      target_sources(${target} PRIVATE $<TARGET_OBJECTS:${target}_${folder}>)
    endif()
  endforeach()
endfunction()
