//! kvasir-link
