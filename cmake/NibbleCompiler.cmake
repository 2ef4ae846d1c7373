# Compiler settings and third-party targets shared by every layer.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

find_program(NIBBLE_CCACHE ccache)
if(NIBBLE_CCACHE)
  # BASEDIR makes object files of different checkouts interchangeable.
  set(CMAKE_CXX_COMPILER_LAUNCHER
      ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=1 ${NIBBLE_CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER})
endif()

add_library(nibble_options INTERFACE)
# The binary runs on any x86-64-v2; wider code sits in ISA regions chosen at run time.
target_compile_options(nibble_options INTERFACE
  -march=x86-64-v2 -Wall -Wextra -Wconversion -Wshadow -fstack-protector-strong -fno-math-errno
  -Wno-missing-field-initializers  # designated initialisers leave the rest to the defaults
  $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>
  $<$<BOOL:${NIBBLE_WERROR}>:-Werror>)
target_compile_definitions(nibble_options INTERFACE $<$<CONFIG:Release>:_FORTIFY_SOURCE=2>)
target_link_options(nibble_options INTERFACE -Wl,-z,relro,-z,now)
target_include_directories(nibble_options INTERFACE ${CMAKE_SOURCE_DIR}/src)
if(NIBBLE_SANITIZE)
  target_compile_options(nibble_options INTERFACE
    -fsanitize=${NIBBLE_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all -g1)
  target_link_options(nibble_options INTERFACE -fsanitize=${NIBBLE_SANITIZE})
endif()

find_package(Threads REQUIRED)
find_package(fmt 9 REQUIRED)
find_package(spdlog REQUIRED)
find_package(simdjson REQUIRED)
find_package(OpenSSL REQUIRED COMPONENTS Crypto)
find_package(CURL 7.85 REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(xxhash REQUIRED IMPORTED_TARGET libxxhash)
add_library(xxhash ALIAS PkgConfig::xxhash)
pkg_check_modules(utf8proc REQUIRED IMPORTED_TARGET libutf8proc)
add_library(utf8proc ALIAS PkgConfig::utf8proc)
pkg_check_modules(prometheus REQUIRED IMPORTED_TARGET prometheus-cpp-core)
add_library(prometheus ALIAS PkgConfig::prometheus)

# Boost is used header-only (Asio, Beast). SYSTEM keeps its warnings out of ours.
find_path(NIBBLE_BOOST_INCLUDE boost/beast/version.hpp REQUIRED)
add_library(boost_headers INTERFACE)
target_include_directories(boost_headers SYSTEM INTERFACE ${NIBBLE_BOOST_INCLUDE})
