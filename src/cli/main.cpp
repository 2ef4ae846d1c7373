#include "cli/commands.h"

int main(int argc, char** argv) { return nibble::cli::run(argc, argv); }
