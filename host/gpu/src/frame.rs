//! Frames: what travels in either direction over the pipes. A length, a kind, a body; and the plain codec of bodies.
//!
//! | bytes | what |
//! | --- | --- |
//! | 4 | length of the body, u32 little-endian, at most [`MAX_FRAME_BYTES`] |
//! | 1 | kind |
//! | .. | body |

use std::io::{self, Read};

/// Largest body of a frame. Rows and weights of more bytes are sent in several frames.
pub const MAX_FRAME_BYTES: usize = 24 << 20;
/// Bytes before the body.
pub const HEADER_BYTES: usize = 5;

/// A body that is not what its kind says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a message is malformed: {0}")]
pub struct Malformed(pub &'static str);

/// Reads one frame from a blocking stream into `body`; `None` at the end of the stream.
///
/// # Errors
/// A body that is too long, a stream that ends inside a frame, or the stream's own errors.
pub fn read_frame(stream: &mut impl Read, body: &mut Vec<u8>) -> io::Result<Option<u8>> {
    let mut header = [0; HEADER_BYTES];
    let mut filled = 0;
    while filled < header.len() {
        match stream.read(&mut header[filled..]) {
            Ok(0) if filled == 0 => return Ok(None),
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    let (length, kind) = parse_header(header);
    if length > MAX_FRAME_BYTES {
        let what = format!("a frame of {length} bytes, the limit is {MAX_FRAME_BYTES}");
        return Err(io::Error::new(io::ErrorKind::InvalidData, what));
    }
    body.resize(length, 0);
    stream.read_exact(body)?;
    Ok(Some(kind))
}

/// Length and kind of a header.
pub fn parse_header(header: [u8; HEADER_BYTES]) -> (usize, u8) {
    let [a, b, c, d, kind] = header;
    (u32::from_le_bytes([a, b, c, d]) as usize, kind)
}

/// A frame being written: its header is completed by [`Writer::finish`].
pub struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    /// Begins a frame of `kind`.
    pub fn new(kind: u8) -> Self {
        Writer { bytes: vec![0, 0, 0, 0, kind] }
    }

    /// One byte.
    pub fn u8(&mut self, value: u8) -> &mut Self {
        self.bytes.push(value);
        self
    }

    /// A number.
    pub fn u32(&mut self, value: u32) -> &mut Self {
        self.bytes.extend_from_slice(&value.to_le_bytes());
        self
    }

    /// A number.
    pub fn u64(&mut self, value: u64) -> &mut Self {
        self.bytes.extend_from_slice(&value.to_le_bytes());
        self
    }

    /// Bytes with their length before them.
    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.u32(bytes.len() as u32);
        self.bytes.extend_from_slice(bytes);
        self
    }

    /// Bytes to the end of the frame.
    pub fn rest(&mut self, bytes: &[u8]) -> &mut Self {
        self.bytes.extend_from_slice(bytes);
        self
    }

    /// The whole frame.
    ///
    /// # Errors
    /// A body over the limit.
    pub fn finish(mut self) -> Result<Vec<u8>, Malformed> {
        let length = self.bytes.len() - HEADER_BYTES;
        if length > MAX_FRAME_BYTES {
            return Err(Malformed("it is too long for one frame"));
        }
        self.bytes[..4].copy_from_slice(&(length as u32).to_le_bytes());
        Ok(self.bytes)
    }
}

/// Reads a body field by field.
#[derive(Clone, Copy)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// At the start of `body`.
    pub fn new(body: &'a [u8]) -> Self {
        Reader { rest: body }
    }

    /// One byte.
    pub fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(self.array::<1>()?[0])
    }

    /// A number.
    pub fn u32(&mut self) -> Result<u32, Malformed> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    /// A number.
    pub fn u64(&mut self) -> Result<u64, Malformed> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// Bytes with their length before them.
    pub fn bytes(&mut self) -> Result<&'a [u8], Malformed> {
        let length = self.u32()? as usize;
        self.take(length)
    }

    /// Text with its length before it.
    pub fn text(&mut self) -> Result<&'a str, Malformed> {
        std::str::from_utf8(self.bytes()?).map_err(|_| Malformed("a text is not UTF-8"))
    }

    /// The next `length` bytes.
    pub fn take(&mut self, length: usize) -> Result<&'a [u8], Malformed> {
        let (bytes, rest) = self.rest.split_at_checked(length).ok_or(Malformed("it ends too early"))?;
        self.rest = rest;
        Ok(bytes)
    }

    /// Everything that is left.
    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }

    /// Nothing may be left.
    pub fn end(self) -> Result<(), Malformed> {
        if self.rest.is_empty() { Ok(()) } else { Err(Malformed("it is longer than it should be")) }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (bytes, rest) = self.rest.split_first_chunk().ok_or(Malformed("it ends too early"))?;
        self.rest = rest;
        Ok(*bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_comes_back_and_a_long_or_broken_one_does_not() {
        let mut writer = Writer::new(7);
        writer.u8(1).u32(2).u64(3).bytes(b"four").rest(b"five");
        let frame = writer.finish().unwrap();
        let mut body = Vec::new();
        assert_eq!(read_frame(&mut &frame[..], &mut body).unwrap(), Some(7));
        let mut reader = Reader::new(&body);
        assert_eq!((reader.u8(), reader.u32(), reader.u64()), (Ok(1), Ok(2), Ok(3)));
        assert_eq!((reader.bytes(), reader.rest()), (Ok(&b"four"[..]), &b"five"[..]));
        assert_eq!(reader.end(), Ok(()));
        assert!(reader.u8().is_err());
        for cut in 1..frame.len() {
            assert!(read_frame(&mut &frame[..cut], &mut body).is_err(), "cut at {cut}");
        }
        assert_eq!(read_frame(&mut &[][..], &mut body).unwrap(), None);
        let mut long = (MAX_FRAME_BYTES as u32 + 1).to_le_bytes().to_vec();
        long.push(0);
        assert!(read_frame(&mut &long[..], &mut body).is_err());
        let mut writer = Writer::new(0);
        writer.rest(&vec![0; MAX_FRAME_BYTES + 1]);
        assert!(writer.finish().is_err());
    }

    #[test]
    fn a_length_inside_a_body_is_not_believed() {
        let mut reader = Reader::new(&[255, 255, 255, 255, 1]);
        assert!(reader.bytes().is_err());
    }
}
