//! The host's side of the GPU: starts the process that drives it, talks to it over two pipes, and ends it at a deadline. No GPU
//! library is linked here.
