//! kvasir-experts
