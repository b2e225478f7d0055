//! The program `kvasir-gpu`, started by a host process and talked to over its standard input and output; of no use by hand.

fn main() {}
