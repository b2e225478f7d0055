//! kvasir-gateway
