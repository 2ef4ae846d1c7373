# cmake -DSOURCE_DIR=... -DOUTPUT=... -P WriteCommit.cmake: a source file that knows the revision of the others, touched
# only when that changes.
cmake_minimum_required(VERSION 3.25)
execute_process(COMMAND git describe --always --dirty --abbrev=12 --exclude=*
                WORKING_DIRECTORY ${SOURCE_DIR} OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(NOT commit)
  set(commit unknown)
endif()
file(CONFIGURE OUTPUT ${OUTPUT} @ONLY CONTENT
"#include \"cli/version.h\"

namespace nibble::cli {
std::string_view version_commit() { return \"@commit@\"; }
}  // namespace nibble::cli
")
