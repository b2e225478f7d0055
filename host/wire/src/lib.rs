//! kvasir-wire
