//! The host's side of the kernel process: starts the program `kvasir-kernel`, hands it a kernel, talks to it over shared memory, and
//! ends it at a deadline. It links no WebAssembly engine and parses no component.
