//! kvasir-plugin
