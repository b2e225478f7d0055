//! kvasir-backbone
