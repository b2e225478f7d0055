//! The program `kvasir-kernel`.

fn main() {}
