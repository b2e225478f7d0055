//! kvasir-dispatch
