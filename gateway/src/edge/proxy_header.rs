//! The PROXY protocol, versions 1 and 2 (HAProxy's `proxy-protocol.txt`): who is the client of a connection that a proxy
//! passes on. As a receiver, and as the sender of version 2 to backends that want it.
//!
//! The header stands in front of the TLS handshake, and the first byte tells the two apart. From peers that the operator named
//! it must come, or a proxy that passes bytes on as they are would let its clients write it; from anybody else it is refused,
//! since it would let a stranger choose whom the caps and the log take it for. Reading takes not one byte more than the header, whose length is known before the rest of it is read.
//!
//! The crates for it (`ppp`, `proxy-header`) take a buffer that holds the header and leave the reading, and so its limits, to
//! the caller; the parsing is the smaller half.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use tokio::io::{AsyncRead, AsyncReadExt as _};

/// Most bytes of a header of version 1, its line end included; the protocol's own limit.
pub const MAX_TEXT_BYTES: usize = 107;
/// Most bytes behind the fixed part of a header of version 2: addresses, and what proxies add (a certificate's names, an
/// identifier). The format allows 65,535.
pub const MAX_BLOCK_BYTES: usize = 2_048;

/// What a header of version 2 begins with.
const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";
/// What a header of version 1 begins with.
const TEXT_SIGNATURE: &[u8] = b"PROXY ";
/// Signature, version and command, family, length.
const FIXED_BYTES: usize = 16;

/// Why a header is not taken.
#[derive(Debug, thiserror::Error)]
pub enum ProxyHeaderError {
    /// Its sender is not one of those that send one.
    #[error("what looks like a PROXY header came from a peer that is not one of edge.proxy_protocol_peers")]
    NotTrusted,
    /// None came from a peer that sends one.
    #[error("no PROXY header came from a peer that is one of edge.proxy_protocol_peers")]
    Missing,
    /// It breaks a rule of the protocol.
    #[error("the PROXY header is malformed: {0}")]
    Malformed(&'static str),
    /// It is longer than the limit.
    #[error("the PROXY header says that {bytes} bytes follow, at most {MAX_BLOCK_BYTES} are read")]
    TooLarge {
        /// What it says.
        bytes: usize,
    },
    /// The stream failed or ended.
    #[error("reading the PROXY header: {0}")]
    Stream(#[from] io::Error),
}

/// Whether a connection's first byte begins a PROXY header: none of them begins a TLS record.
pub fn begins(first: u8) -> bool {
    first == SIGNATURE[0] || first == TEXT_SIGNATURE[0]
}

/// Reads a header and nothing behind it. Answers the client's address; `None` where the proxy speaks for itself (a health
/// check) or does not know.
pub async fn read<S: AsyncRead + Unpin>(stream: &mut S) -> Result<Option<IpAddr>, ProxyHeaderError> {
    let mut first = [0; 1];
    stream.read_exact(&mut first).await?;
    match first[0] {
        byte if byte == SIGNATURE[0] => read_binary(stream).await,
        byte if byte == TEXT_SIGNATURE[0] => read_text(stream).await,
        _ => Err(ProxyHeaderError::Malformed("it does not begin as one")),
    }
}

/// A header of version 2 for a connection of `source` to `destination`; port 0 where it is not known. Where only one of them is
/// an IPv4 address, it is written as an IPv6 one.
pub fn encode(source: SocketAddr, destination: SocketAddr) -> Vec<u8> {
    let (family, addresses) = match (source.ip().to_canonical(), destination.ip().to_canonical()) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            (0x11, [source.octets(), destination.octets()].concat())
        }
        (source, destination) => {
            (0x21, [source, destination].map(|address| as_ipv6(address).octets()).concat())
        }
    };
    let ports = [source.port(), destination.port()].map(u16::to_be_bytes).concat();
    // 12 or 36.
    let length = (addresses.len() + ports.len()) as u16;
    [&SIGNATURE[..], &[0x21, family], &length.to_be_bytes(), &addresses, &ports].concat()
}

fn as_ipv6(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    }
}

/// Version 2, behind its first byte.
async fn read_binary<S: AsyncRead + Unpin>(stream: &mut S) -> Result<Option<IpAddr>, ProxyHeaderError> {
    let mut fixed = [SIGNATURE[0]; FIXED_BYTES];
    stream.read_exact(&mut fixed[1..]).await?;
    if fixed[..12] != SIGNATURE {
        return Err(ProxyHeaderError::Malformed("the signature of version 2 is another"));
    }
    let bytes = usize::from(u16::from_be_bytes([fixed[14], fixed[15]]));
    if bytes > MAX_BLOCK_BYTES {
        return Err(ProxyHeaderError::TooLarge { bytes });
    }
    let mut block = vec![0; bytes];
    stream.read_exact(&mut block).await?;
    parse_block(fixed[12], fixed[13], &block)
}

/// The client's address in a block of version 2.
fn parse_block(command: u8, family: u8, block: &[u8]) -> Result<Option<IpAddr>, ProxyHeaderError> {
    match command {
        // LOCAL: whatever else it holds is to be skipped.
        0x20 => return Ok(None),
        0x21 => {}
        _ => return Err(ProxyHeaderError::Malformed("neither version 2 nor a command that it knows")),
    }
    let short = ProxyHeaderError::Malformed("it is too short for its addresses");
    let (address, length): (IpAddr, usize) = match family {
        0x00 => return Ok(None),
        // TCP over IPv4: two addresses, two ports.
        0x11 => match block.first_chunk::<4>() {
            Some(source) => (Ipv4Addr::from(*source).into(), 12),
            None => return Err(short),
        },
        // TCP over IPv6.
        0x21 => match block.first_chunk::<16>() {
            Some(source) => (Ipv6Addr::from(*source).into(), 36),
            None => return Err(short),
        },
        _ => return Err(ProxyHeaderError::Malformed("it is not about a TCP connection")),
    };
    if block.len() < length {
        return Err(short);
    }
    check_additions(&block[length..])?;
    Ok(Some(address.to_canonical()))
}

/// Type, length and value, again and again: they are not looked at, but their lengths have to be right.
fn check_additions(mut rest: &[u8]) -> Result<(), ProxyHeaderError> {
    while !rest.is_empty() {
        let next = match rest {
            [_, high, low, values @ ..] => values.get(usize::from(u16::from_be_bytes([*high, *low]))..),
            _ => None,
        };
        rest = next.ok_or(ProxyHeaderError::Malformed("an addition is longer than the header"))?;
    }
    Ok(())
}

/// Version 1, behind its first byte.
async fn read_text<S: AsyncRead + Unpin>(stream: &mut S) -> Result<Option<IpAddr>, ProxyHeaderError> {
    let mut line = Vec::with_capacity(MAX_TEXT_BYTES);
    line.push(TEXT_SIGNATURE[0]);
    while !line.ends_with(b"\r\n") {
        if line.len() == MAX_TEXT_BYTES {
            return Err(ProxyHeaderError::Malformed("no line end within 107 bytes"));
        }
        // Byte by byte: what stands behind the line is the client's.
        line.push(stream.read_u8().await?);
    }
    parse_line(&line)
}

/// The client's address in a line of version 1.
fn parse_line(line: &[u8]) -> Result<Option<IpAddr>, ProxyHeaderError> {
    let malformed = ProxyHeaderError::Malformed;
    let text = line
        .strip_prefix(TEXT_SIGNATURE)
        .and_then(|rest| rest.strip_suffix(b"\r\n"))
        .and_then(|rest| std::str::from_utf8(rest).ok())
        .ok_or(malformed("the line does not begin with PROXY"))?;
    if text == "UNKNOWN" || text.starts_with("UNKNOWN ") {
        return Ok(None);
    }
    let words: Vec<&str> = text.split(' ').take(6).collect();
    let [family, source, destination, source_port, destination_port] = words[..] else {
        return Err(malformed("the line is not made of family, two addresses and two ports"));
    };
    let wanted = |address: &IpAddr| match family {
        "TCP4" => address.is_ipv4(),
        "TCP6" => address.is_ipv6(),
        _ => false,
    };
    let read = |text: &str| text.parse().ok().filter(wanted);
    let (Some(source), Some(_)) = (read(source), read(destination)) else {
        return Err(malformed("an address cannot be read, or is of another family"));
    };
    for port in [source_port, destination_port] {
        let plain = port == "0" || !port.starts_with('0');
        if !(plain && port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok()) {
            return Err(malformed("a port cannot be read"));
        }
    }
    Ok(Some(source.to_canonical()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What the reader makes of these bytes, and how many it took.
    fn run(bytes: &[u8]) -> (Result<Option<IpAddr>, ProxyHeaderError>, usize) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let mut rest = bytes;
        let result = runtime.block_on(read(&mut rest));
        (result, bytes.len() - rest.len())
    }

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn binary(command: u8, family: u8, block: &[u8]) -> Vec<u8> {
        let length = u16::try_from(block.len()).unwrap().to_be_bytes();
        [&SIGNATURE[..], &[command, family], &length, block].concat()
    }

    const V4: [u8; 12] = [203, 0, 113, 7, 10, 0, 0, 1, 0x30, 0x39, 0x01, 0xbb];

    #[test]
    fn both_versions_are_read_and_not_a_byte_more() {
        let mut v6 = [0; 36];
        v6[..16].copy_from_slice(&Ipv6Addr::from_bits((0x2001_0db8 << 96) | 1).octets());
        let mapped = [Ipv4Addr::new(1, 2, 3, 4).to_ipv6_mapped().octets().as_slice(), &[0; 20]].concat();
        // 0x04 PP2_TYPE_NOOP of three bytes, 0x02 PP2_TYPE_AUTHORITY.
        let with_additions = [&V4[..], &[4, 0, 3, 0, 0, 0], &[2, 0, 1, b'x']].concat();
        let cases: [(Vec<u8>, Option<IpAddr>); 10] = [
            (binary(0x21, 0x11, &V4), Some(address("203.0.113.7"))),
            (binary(0x21, 0x21, &v6), Some(address("2001:db8::1"))),
            (binary(0x21, 0x21, &mapped), Some(address("1.2.3.4"))),
            (binary(0x21, 0x11, &with_additions), Some(address("203.0.113.7"))),
            (binary(0x20, 0x00, &[]), None),
            (binary(0x20, 0xff, &[9; 5]), None),
            (binary(0x21, 0x00, &[9; 5]), None),
            (b"PROXY TCP4 203.0.113.7 10.0.0.1 12345 443\r\n".to_vec(), Some(address("203.0.113.7"))),
            (b"PROXY TCP6 2001:db8::1 ::1 0 65535\r\n".to_vec(), Some(address("2001:db8::1"))),
            (b"PROXY UNKNOWN ffff::1 whatever\r\n".to_vec(), None),
        ];
        for (header, expected) in cases {
            assert!(begins(header[0]));
            let followed = [&header[..], b"\x16\x03\x01"].concat();
            let (found, taken) = run(&followed);
            assert_eq!((found.unwrap(), taken), (expected, header.len()), "{header:?}");
        }
        assert!(!begins(0x16), "a TLS handshake is not taken for one");
    }

    #[test]
    fn what_breaks_a_rule_is_refused() {
        let cases: Vec<Vec<u8>> = vec![
            b"GET / HTTP/1.1\r\n".to_vec(),
            b"PROXY\r\n".to_vec(),
            b"PROXY \r\n".to_vec(),
            b"PROXY TCP4\r\n".to_vec(),
            b"PROXY UNKNOWNS\r\n".to_vec(),
            b"PROXY TCP4 1.2.3.4 5.6.7.8 1\r\n".to_vec(),
            b"PROXY TCP4 1.2.3.4 5.6.7.8 1 2 3\r\n".to_vec(),
            b"PROXY TCP4  1.2.3.4 5.6.7.8 1 2\r\n".to_vec(),
            b"PROXY TCP4 1.2.3.4 5.6.7.8 1 2 \r\n".to_vec(),
            b"PROXY TCP4 1.2.3.4 ::1 1 2\r\n".to_vec(),
            b"PROXY TCP6 1.2.3.4 5.6.7.8 1 2\r\n".to_vec(),
            b"PROXY UDP4 1.2.3.4 5.6.7.8 1 2\r\n".to_vec(),
            b"PROXY TCP4 1.2.3.4 5.6.7.8 1 65536\r\n".to_vec(),
            b"PROXY TCP4 1.2.3.4 5.6.7.8 +1 2\r\n".to_vec(),
            b"PROXY TCP4 1.2.3.4 5.6.7.8 01 2\r\n".to_vec(),
            b"PROXY TCP4 1.2.3.004 5.6.7.8 1 2\r\n".to_vec(),
            b"PROXY TCP4 1.2.3.4\t5.6.7.8 1 2\r\n".to_vec(),
            b"PROXY TCP4 1.2.3.4 5.6.7.8 1 2\n\r\n".to_vec(),
            b"PROXY TCP4 \xff.2.3.4 5.6.7.8 1 2\r\n".to_vec(),
            b"PROXYTCP4 1.2.3.4 5.6.7.8 1 2\r\n".to_vec(),
            b"\r\n\r\n\0\r\nQUIT\r\x21\x11\0\0".to_vec(),
            binary(0x11, 0x11, &V4),
            binary(0x22, 0x11, &V4),
            binary(0x31, 0x11, &V4),
            binary(0x21, 0x12, &V4),
            binary(0x21, 0x31, &[0; 216]),
            binary(0x21, 0x11, &V4[..11]),
            binary(0x21, 0x11, &[]),
            binary(0x21, 0x21, &[0; 35]),
            binary(0x21, 0x11, &[&V4[..], &[4, 0]].concat()),
            binary(0x21, 0x11, &[&V4[..], &[4, 0, 2, 0]].concat()),
            binary(0x21, 0x11, &[&V4[..], &[4, 0xff, 0xff]].concat()),
        ];
        for bytes in cases {
            let (found, _) = run(&bytes);
            assert!(matches!(found, Err(ProxyHeaderError::Malformed(_))), "{bytes:?}: {found:?}");
        }
    }

    #[test]
    fn the_limits_hold_before_anything_is_allocated_or_read() {
        let mut large = binary(0x21, 0x11, &[0; MAX_BLOCK_BYTES + 1]);
        let (found, taken) = run(&large);
        assert!(matches!(found, Err(ProxyHeaderError::TooLarge { bytes }) if bytes == MAX_BLOCK_BYTES + 1));
        assert_eq!(taken, FIXED_BYTES);
        // At the limit, filled with one addition.
        let addition = MAX_BLOCK_BYTES - 12 - 3;
        let block = [&V4[..], &[4, (addition >> 8) as u8, addition as u8], &vec![0; addition][..]].concat();
        assert_eq!(run(&binary(0x21, 0x11, &block)).0.unwrap(), Some(address("203.0.113.7")));
        large.clear();
        large.extend_from_slice(b"PROXY UNKNOWN ");
        large.resize(5_000, b'a');
        let (found, taken) = run(&large);
        assert!(matches!(found, Err(ProxyHeaderError::Malformed(_))));
        assert_eq!(taken, MAX_TEXT_BYTES);
    }

    #[test]
    fn a_header_that_is_cut_off_is_an_end() {
        for header in [binary(0x21, 0x11, &V4), b"PROXY TCP4 203.0.113.7 10.0.0.1 12345 443\r\n".to_vec()] {
            for length in 0..header.len() {
                assert!(matches!(run(&header[..length]).0, Err(ProxyHeaderError::Stream(_))), "{length}");
            }
        }
    }

    #[test]
    fn a_header_that_is_written_is_the_one_that_the_protocol_has() {
        let socket = |text: &str| text.parse::<SocketAddr>().unwrap();
        let v4 = encode(socket("203.0.113.7:12345"), socket("10.0.0.1:443"));
        assert_eq!(v4, binary(0x21, 0x11, &V4));
        assert_eq!(v4, encode(socket("[::ffff:203.0.113.7]:12345"), socket("10.0.0.1:443")));
        let mixed = encode(socket("203.0.113.7:0"), socket("[::1]:443"));
        let mapped = Ipv4Addr::new(203, 0, 113, 7).to_ipv6_mapped().octets();
        let block = [&mapped[..], &Ipv6Addr::LOCALHOST.octets(), &[0, 0, 1, 0xbb]].concat();
        assert_eq!(mixed, binary(0x21, 0x21, &block));
    }

    proptest! {
        #[test]
        fn what_is_written_reads_back(source: SocketAddr, destination: SocketAddr) {
            let (found, taken) = run(&encode(source, destination));
            prop_assert_eq!(found.unwrap(), Some(source.ip().to_canonical()));
            prop_assert!(taken == FIXED_BYTES + 12 || taken == FIXED_BYTES + 36);
        }

        #[test]
        fn every_client_reads_back(source: [u8; 16], ports: (u16, u16), is_v4: bool, extra in prop::collection::vec(any::<u8>(), 0..50)) {
            let (text, source, block): (&str, IpAddr, Vec<u8>) = if is_v4 {
                let source = Ipv4Addr::from(*source.first_chunk::<4>().unwrap());
                ("TCP4", source.into(), [&source.octets()[..], &[0; 8]].concat())
            } else {
                let source = Ipv6Addr::from(source);
                ("TCP6", source.into(), [&source.octets()[..], &[0; 20]].concat())
            };
            let destination = if is_v4 { "10.0.0.1" } else { "::1" };
            let line = format!("PROXY {text} {source} {destination} {} {}\r\n", ports.0, ports.1);
            let expected = Some(source.to_canonical());
            for header in [line.into_bytes(), binary(0x21, if is_v4 { 0x11 } else { 0x21 }, &block)] {
                let (found, taken) = run(&[&header[..], &extra[..]].concat());
                prop_assert_eq!(found.unwrap(), expected);
                prop_assert_eq!(taken, header.len());
            }
        }

        #[test]
        fn no_bytes_make_the_reader_panic_or_read_on(
            bytes in prop::collection::vec(any::<u8>(), 0..400),
            begin in prop::sample::select(vec![SIGNATURE.to_vec(), b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0".to_vec(), b"PROXY ".to_vec(), Vec::new()]),
        ) {
            let (_, taken) = run(&[&begin[..], &bytes[..]].concat());
            prop_assert!(taken <= FIXED_BYTES + MAX_BLOCK_BYTES);
        }
    }
}
