//! The reader of a TLS ClientHello at the edge, as it sees a connection: bytes that come in pieces.
//!
//! The file itself is compiled in, since the rest of the gateway has nothing to do with it.
#![no_main]

#[path = "../../gateway/src/edge/client_hello.rs"]
mod client_hello;

use client_hello::{HelloError, MAX_CLIENT_HELLO_BYTES, MAX_NAME_BYTES, is_host_name, read};
use libfuzzer_sys::fuzz_target;

/// In how many pieces the bytes come.
const PIECES: usize = 32;

fuzz_target!(|bytes: &[u8]| {
    let whole = read(bytes);
    if let Ok(Some(hello)) = &whole
        && let Some(name) = &hello.server_name
    {
        assert!(name.len() <= MAX_NAME_BYTES && is_host_name(name.as_bytes()));
        assert_eq!(*name, name.to_ascii_lowercase());
    }
    assert!(bytes.len() < MAX_CLIENT_HELLO_BYTES || whole != Ok(None), "there is an end to waiting");
    for piece in 1..PIECES {
        match read(&bytes[..bytes.len() * piece / PIECES]) {
            Ok(None) => {}
            // Only the limit depends on how much has come.
            Err(HelloError::TooLong) => return,
            decided => {
                assert_eq!(decided, whole, "what was decided stays, whatever follows");
                return;
            }
        }
    }
});
