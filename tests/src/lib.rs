//! kvasir-tests
