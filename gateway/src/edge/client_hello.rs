//! The server's name in a TLS ClientHello (RFC 8446, sections 4.1.2 and 5.1; RFC 6066, section 3), for choosing where a
//! connection goes before anybody has ended its TLS.
//!
//! A pure function of the bytes that have come so far: no I/O, no clock. It reads record headers, one handshake message and
//! one extension, and of the rest the lengths; whatever breaks a rule that it can see is refused, since the name decides. What
//! the hello offers is not looked at: that is for whoever ends the TLS.
//!
//! `rustls` has a parser too, behind an acceptor that takes the bytes and does not give them back; here they have to go on as
//! they came.

/// Most bytes of a ClientHello, its record headers included. Those of browsers with post-quantum keys have about 2,000.
pub const MAX_CLIENT_HELLO_BYTES: usize = 16 * 1024;
/// Most bytes of a name: the limit of the domain name system, without a dot at the end.
pub const MAX_NAME_BYTES: usize = 253;
/// Most bytes of one label of a name.
const MAX_LABEL_BYTES: usize = 63;
/// Most bytes of a TLS record's content, of a plain one.
const MAX_RECORD_BYTES: usize = 1 << 14;
/// Content type of a record that holds handshake messages.
const HANDSHAKE: u8 = 22;
/// Handshake type of a ClientHello.
const CLIENT_HELLO: u8 = 1;
/// Type of the extension that holds the name.
const SERVER_NAME: usize = 0;
/// The one type of name that there is.
const HOST_NAME: usize = 0;

/// What a ClientHello says about where it wants to go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientHello {
    /// The server's name in lower case; `None` where the client names none.
    pub server_name: Option<String>,
}

/// Why bytes are no ClientHello that could be routed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HelloError {
    /// What came is no TLS, or begins with something else than a ClientHello.
    #[error("it is not a TLS ClientHello")]
    NotHello,
    /// A rule is broken.
    #[error("the ClientHello is malformed: {0}")]
    Malformed(&'static str),
    /// It is longer than the limit.
    #[error("the ClientHello is longer than {MAX_CLIENT_HELLO_BYTES} bytes")]
    TooLong,
}

/// Reads a ClientHello from the beginning of a connection; `None` while bytes of it are missing. What follows it in other
/// records is not looked at.
pub fn read(bytes: &[u8]) -> Result<Option<ClientHello>, HelloError> {
    match message(bytes)? {
        Some(message) => parse(&message).map(Some),
        None if bytes.len() >= MAX_CLIENT_HELLO_BYTES => Err(HelloError::TooLong),
        None => Ok(None),
    }
}

/// The body of the handshake message, put together from its records.
fn message(bytes: &[u8]) -> Result<Option<Vec<u8>>, HelloError> {
    let mut message = Vec::new();
    let mut rest = bytes;
    loop {
        // Kind and version are looked at as soon as they are there: what is no TLS is not waited for.
        match rest {
            [HANDSHAKE, 3, ..] | [HANDSHAKE] => {}
            [] => return Ok(None),
            _ => return Err(HelloError::NotHello),
        }
        let [_, _, _, high, low, content @ ..] = rest else { return Ok(None) };
        let length = usize::from(u16::from_be_bytes([*high, *low]));
        if length == 0 || length > MAX_RECORD_BYTES {
            return Err(HelloError::Malformed("a record is empty, or longer than a record may be"));
        }
        let come = content.len().min(length);
        message.extend_from_slice(&content[..come]);
        if message.first().is_some_and(|kind| *kind != CLIENT_HELLO) {
            return Err(HelloError::NotHello);
        }
        if let [_, high, middle, low, body @ ..] = &message[..] {
            let needed = u32::from_be_bytes([0, *high, *middle, *low]) as usize;
            if needed > MAX_CLIENT_HELLO_BYTES {
                return Err(HelloError::TooLong);
            }
            let more = body.len() > needed || (body.len() == needed && come < length);
            if more {
                return Err(HelloError::Malformed("something follows it in its record"));
            }
            if body.len() == needed {
                return Ok(Some(message.split_off(4)));
            }
        }
        if come < length {
            return Ok(None);
        }
        rest = &content[length..];
    }
}

/// The fields of the message, of which the extensions are the last.
fn parse(message: &[u8]) -> Result<ClientHello, HelloError> {
    let mut fields = Fields(message);
    if fields.bytes(2)?[0] != 3 {
        return Err(HelloError::Malformed("its version is of no TLS"));
    }
    fields.bytes(32)?;
    if fields.vector(1)?.0.len() > 32 {
        return Err(HelloError::Malformed("its session identifier is longer than 32 bytes"));
    }
    let suites = fields.vector(2)?.0.len();
    if suites == 0 || !suites.is_multiple_of(2) {
        return Err(HelloError::Malformed("its list of cipher suites is empty or odd"));
    }
    if fields.vector(1)?.0.is_empty() {
        return Err(HelloError::Malformed("its list of compression methods is empty"));
    }
    let mut server_name = None;
    // TLS 1.2 allows a hello without extensions.
    if !fields.0.is_empty() {
        let mut extensions = fields.vector(2)?;
        fields.end()?;
        while !extensions.0.is_empty() {
            let kind = extensions.number(2)?;
            let data = extensions.vector(2)?;
            if kind == SERVER_NAME && server_name.replace(host_name(data)?).is_some() {
                return Err(HelloError::Malformed("it names the server twice"));
            }
        }
    }
    Ok(ClientHello { server_name })
}

/// The name in a `server_name` extension: a list that may hold one of each type, of which there is one.
fn host_name(mut extension: Fields<'_>) -> Result<String, HelloError> {
    let mut list = extension.vector(2)?;
    extension.end()?;
    if list.number(1)? != HOST_NAME {
        return Err(HelloError::Malformed("it names the server by something else than a host name"));
    }
    let name = list.vector(2)?.0;
    list.end()?;
    if !is_host_name(name) {
        return Err(HelloError::Malformed("the server's name is no host name"));
    }
    // It was looked at: letters, digits, dots, hyphens and underscores.
    Ok(String::from_utf8_lossy(name).to_ascii_lowercase())
}

/// Whether this is a name as it stands in a ClientHello: labels of letters, digits, hyphens and underscores, no dot at the end.
pub fn is_host_name(name: &[u8]) -> bool {
    let is_label = |label: &[u8]| {
        (1..=MAX_LABEL_BYTES).contains(&label.len())
            && label.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
    };
    name.len() <= MAX_NAME_BYTES && name.split(|byte| *byte == b'.').all(is_label)
}

/// What is left to read.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn bytes(&mut self, count: usize) -> Result<&'a [u8], HelloError> {
        let (bytes, rest) =
            self.0.split_at_checked(count).ok_or(HelloError::Malformed("a field is cut off"))?;
        self.0 = rest;
        Ok(bytes)
    }

    /// A number of one or two bytes.
    fn number(&mut self, width: usize) -> Result<usize, HelloError> {
        Ok(self.bytes(width)?.iter().fold(0, |number, byte| (number << 8) | usize::from(*byte)))
    }

    /// What stands behind its length, itself of one or two bytes.
    fn vector(&mut self, width: usize) -> Result<Fields<'a>, HelloError> {
        let length = self.number(width)?;
        self.bytes(length).map(Fields)
    }

    fn end(&self) -> Result<(), HelloError> {
        match self.0.is_empty() {
            true => Ok(()),
            false => Err(HelloError::Malformed("something follows the last field")),
        }
    }
}

#[cfg(test)]
#[path = "client_hello/tests.rs"] // also where the fuzz target compiles this file in
mod tests;
