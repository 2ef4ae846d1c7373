# The commands people need. CMake presets hold the settings; tools/setup installs Debian packages where it may.
.DEFAULT_GOAL := help
.PHONY: help demo release test bench check-all lint format install clean

PREFIX ?= /usr/local
JOBS ?= $(shell nproc)

help:
	@echo "make demo       build the program (CPU only) and chat with the bundled model"
	@echo "make test       build everything and run the tests"
	@echo "make release    build build/release/bin/nibble"
	@echo "make install    install it under PREFIX (default /usr/local), with a systemd unit"
	@echo "make bench      build and run the benchmarks"
	@echo "make lint       format, include direction, clang-tidy"
	@echo "make check-all  every preset, long fuzzing: hours, not minutes"

release:
	@tools/setup build
	@tools/cmake_build release nibble

demo: release
	@build/release/bin/nibble demo models/tiny-v4

test:
	@tools/setup test
	@tools/cmake_build ci all
	@ctest --preset ci -j $(JOBS)

bench:
	@tools/setup test
	@tools/cmake_build dev all
	@for b in build/dev/bin/*_bench; do $$b || exit 1; done

lint:
	@tools/setup lint
	@tools/tidy
	@tools/clang_tidy

format:
	@tools/setup lint
	@git ls-files '*.h' '*.cpp' '*.cu' '*.cuh' | xargs clang-format-14 -i

install: release
	@cmake --install build/release --prefix $(PREFIX) --component nibble

check-all:
	@tools/setup lint
	@tools/check_all

clean:
	@rm -rf build
