//! kvasir-numerics
