//! kvasir-sandbox
