//! kvasir-ledger
