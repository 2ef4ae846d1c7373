# add_layer(NAME cache DEPS base EXTERNAL fmt::fmt)
#
# Makes the static library nibble_<name> from src/<name>, links exactly its permitted layers, checks that each
# header compiles alone, and builds one test binary from the folder's *_test.cpp files.
# In folders named cuda, files named cuda_* need the CUDA toolkit and no_cuda.cpp stands in for them without it; *.cu
# files join the layer where the CUDA backend is built. See NibbleCuda.cmake for what is built for one generation only.
# Files named *_testing.{h,cpp} belong to the tests only; TESTING names such files of other layers that the tests use.
function(add_layer)
  cmake_parse_arguments(ARG "" "NAME" "DEPS;EXTERNAL;TESTING" ${ARGN})
  set(dir ${CMAKE_SOURCE_DIR}/src/${ARG_NAME})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${dir}/*.cpp)
  file(GLOB_RECURSE headers CONFIGURE_DEPENDS ${dir}/*.h)
  set(tests ${sources})
  list(FILTER tests INCLUDE REGEX "_test\\.cpp$|_testing\\.cpp$")
  list(FILTER sources EXCLUDE REGEX "_test\\.cpp$|_testing\\.cpp$")
  list(FILTER headers EXCLUDE REGEX "-inl\\.h$|_testing\\.h$")  # -inl.h: included inside an ISA region only

  file(GLOB_RECURSE cuda_sources CONFIGURE_DEPENDS ${dir}/*.cu)
  if(NIBBLE_CUDA)
    list(FILTER sources EXCLUDE REGEX "/cuda/no_cuda\\.cpp$")
    filter_cuda_generations(sources)
  else()
    list(FILTER sources EXCLUDE REGEX "/cuda/(sm[0-9]+/)?(cuda_[^/]*|not_built)\\.cpp$")
    list(FILTER headers EXCLUDE REGEX "/cuda/cuda_[^/]*\\.h$")
  endif()

  set(target nibble_${ARG_NAME})
  list(TRANSFORM ARG_DEPS PREPEND nibble_)
  if(sources)
    add_library(${target} STATIC ${sources})
    set(scope PUBLIC)
    target_link_libraries(${target} PRIVATE ${ARG_EXTERNAL})
  else()
    add_library(${target} INTERFACE)
    set(scope INTERFACE)
  endif()
  if(NIBBLE_CUDA)
    add_cuda_sources(${target} ${cuda_sources})
  endif()
  target_link_libraries(${target} ${scope} nibble_options Threads::Threads ${ARG_DEPS})
  target_sources(${target} ${scope} FILE_SET HEADERS BASE_DIRS ${CMAKE_SOURCE_DIR}/src FILES ${headers})
  set_target_properties(${target} PROPERTIES VERIFY_INTERFACE_HEADER_SETS ON)
  if(ARG_NAME STREQUAL "base")
    target_link_libraries(${target} PUBLIC fmt::fmt)  # the only third-party header in ours
  endif()

  if(BUILD_TESTING AND tests)
    find_package(GTest REQUIRED)
    include(GoogleTest)
    add_executable(${ARG_NAME}_test ${tests} ${ARG_TESTING})
    target_link_libraries(${ARG_NAME}_test PRIVATE ${target} GTest::gmock GTest::gtest GTest::gtest_main)
    target_compile_definitions(${ARG_NAME}_test PRIVATE NIBBLE_SOURCE_DIR="${CMAKE_SOURCE_DIR}"
                                                        NIBBLE_BINARY_DIR="${CMAKE_BINARY_DIR}")
    add_dependencies(${ARG_NAME}_test test_data)
    gtest_discover_tests(${ARG_NAME}_test DISCOVERY_MODE PRE_TEST PROPERTIES LABELS ${ARG_NAME})
  endif()
endfunction()
