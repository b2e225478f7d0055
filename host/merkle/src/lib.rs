//! kvasir-merkle
