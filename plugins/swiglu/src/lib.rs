//! kvasir-swiglu
