//! GGUF version 3.

/// GGUF's name of a tensor type number, or `unknown`.
pub(crate) fn format_name(number: u32) -> &'static str {
    match number {
        _ => "unknown",
    }
}
