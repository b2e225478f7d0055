//! kvasir-operate
