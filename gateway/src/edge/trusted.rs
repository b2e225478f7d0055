//! Which peers may say whom they speak for, and who that is by `X-Forwarded-For`.
//!
//! A proxy in front of the edge is the peer of every connection, so the caps for one address would be caps for all, and the
//! log would name nobody. Peers that the operator named may say the address of the client behind them; what anybody else
//! says about addresses is never believed.

use std::{fmt, net::IpAddr, net::SocketAddr, str::FromStr};

use serde::Deserialize;

use crate::{http_head::RequestHead, http_refusal::HttpRefusal};

/// Most networks that may be named.
pub const MAX_TRUSTED: usize = 64;
/// Most addresses in all `X-Forwarded-For` lines of a head together.
pub const MAX_FORWARDED: usize = 16;

/// An address, or all addresses that begin with the same bits: `10.0.0.7`, `10.0.0.0/8`, `fd00::/8`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Network {
    address: IpAddr,
    bits: u8,
}

/// Why text is no network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is neither an address nor a network such as 10.0.0.0/8 or fd00::/8: {why}")]
pub struct NetworkError {
    text: String,
    why: &'static str,
}

impl Network {
    /// Whether an address is in it. An IPv4 address that is written as an IPv6 one counts as what it is.
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(network), IpAddr::V4(address)) => {
                same_prefix(network.to_bits().into(), address.to_bits().into(), 32, self.bits)
            }
            (IpAddr::V6(network), IpAddr::V6(address)) => {
                same_prefix(network.to_bits(), address.to_bits(), 128, self.bits)
            }
            _ => false,
        }
    }
}

fn same_prefix(a: u128, b: u128, width: u32, bits: u8) -> bool {
    // A shift by the whole width is none: no bit has to be the same.
    let rest = width - u32::from(bits).min(width);
    (a ^ b).checked_shr(rest).unwrap_or(0) == 0
}

impl FromStr for Network {
    type Err = NetworkError;

    fn from_str(text: &str) -> Result<Self, NetworkError> {
        let error = |why| NetworkError { text: text.chars().take(80).collect(), why };
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| error("the address cannot be read"))?;
        if address != address.to_canonical() {
            return Err(error("write an IPv4 address as one"));
        }
        // The network's bits first.
        let (width, value) = match address {
            IpAddr::V4(address) => (32, u128::from(address.to_bits()) << 96),
            IpAddr::V6(address) => (128, address.to_bits()),
        };
        let bits = match bits {
            None => width,
            Some(bits) if (1..=3).contains(&bits.len()) && bits.bytes().all(|byte| byte.is_ascii_digit()) => {
                bits.parse().ok().filter(|bits| *bits <= width).ok_or_else(|| error("too many bits"))?
            }
            Some(_) => return Err(error("the number of bits cannot be read")),
        };
        // 10.0.0.7/8 is a slip of which nobody can know what was meant.
        if value.checked_shl(u32::from(bits)).unwrap_or(0) != 0 {
            return Err(error("bits are set behind the network's"));
        }
        Ok(Network { address, bits })
    }
}

impl TryFrom<String> for Network {
    type Error = NetworkError;

    fn try_from(text: String) -> Result<Self, NetworkError> {
        text.parse()
    }
}

impl fmt::Display for Network {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.address, self.bits)
    }
}

/// The peers that may say whom they speak for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrustedPeers(Vec<Network>);

impl TrustedPeers {
    /// These; none unless the operator names some. At most [`MAX_TRUSTED`].
    pub fn new(networks: Vec<Network>) -> Result<Self, TooManyTrusted> {
        match networks.len() {
            0..=MAX_TRUSTED => Ok(TrustedPeers(networks)),
            count => Err(TooManyTrusted { count }),
        }
    }

    /// Whether what this peer says about addresses is believed.
    pub fn contains(&self, peer: IpAddr) -> bool {
        self.0.iter().any(|network| network.contains(peer))
    }

    /// The client of a request that came from `peer`: of the addresses in `X-Forwarded-For`, read from the last one back,
    /// the first that is not a trusted peer's. Each was appended by the one behind it, so it is as good as that one's word.
    /// Where `peer` is not trusted, the header is not looked at.
    pub fn client(&self, peer: IpAddr, head: &RequestHead) -> Result<IpAddr, HttpRefusal> {
        if !self.contains(peer) {
            return Ok(peer);
        }
        let mut found = Vec::new();
        for line in head.all_of("x-forwarded-for") {
            for item in line.split(|&byte| byte == b',') {
                if found.len() == MAX_FORWARDED {
                    return Err(malformed(&format!("more than {MAX_FORWARDED} addresses")));
                }
                found.push(forwarded_address(item).ok_or_else(|| malformed("what is not an address"))?);
            }
        }
        let client = found.iter().rev().find(|address| !self.contains(**address)).or(found.first());
        Ok(client.copied().unwrap_or(peer))
    }
}

/// More peers are trusted than may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{count} peers are named in one list, at most {MAX_TRUSTED} may be: name networks instead of addresses"
)]
pub struct TooManyTrusted {
    count: usize,
}

fn malformed(what: &str) -> HttpRefusal {
    HttpRefusal::bad_request(format!("the header X-Forwarded-For holds {what}"))
        .with_remedy("have the proxy in front of this edge append the address of its peer")
}

/// An address as proxies write it: alone, in brackets, or with a port.
fn forwarded_address(item: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(item.trim_ascii()).ok()?;
    let bracketed = || text.strip_prefix('[')?.strip_suffix(']')?.parse().ok().map(IpAddr::V6);
    let with_port = || text.parse::<SocketAddr>().ok().map(|address| address.ip());
    text.parse().ok().or_else(bracketed).or_else(with_port).map(|address: IpAddr| address.to_canonical())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn trusted(networks: &[&str]) -> TrustedPeers {
        TrustedPeers::new(networks.iter().map(|text| text.parse().unwrap()).collect()).unwrap()
    }

    fn head(lines: &[&str]) -> RequestHead {
        let lines: String = lines.iter().map(|line| format!("{line}\r\n")).collect();
        let mut bytes = format!("GET /v1/worker HTTP/1.1\r\n{lines}\r\n").into_bytes();
        RequestHead::parse(&mut bytes).unwrap().unwrap()
    }

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn networks_hold_what_begins_with_their_bits() {
        let peers = trusted(&["10.0.0.0/8", "192.168.7.9", "fd00::/8", "::1"]);
        for inside in ["10.255.0.1", "::ffff:10.1.2.3", "192.168.7.9", "fd12::1", "::1"] {
            assert!(peers.contains(address(inside)), "{inside}");
        }
        for outside in ["11.0.0.1", "192.168.7.8", "fe00::1", "::2", "::10.0.0.1"] {
            assert!(!peers.contains(address(outside)), "{outside}");
        }
        assert!(trusted(&["0.0.0.0/0"]).contains(address("8.8.8.8")));
        assert!(!trusted(&["0.0.0.0/0"]).contains(address("2001:db8::1")));
        assert!(trusted(&["::/0"]).contains(address("2001:db8::1")));
        assert!(!trusted(&[]).contains(address("127.0.0.1")));
    }

    #[test]
    fn what_is_no_network_is_refused_with_the_reason() {
        for (text, why) in [
            ("", "address"),
            ("10.0.0.0/", "bits cannot"),
            ("10.0.0.0/33", "too many"),
            ("10.0.0.0/+8", "bits cannot"),
            ("10.0.0.0/0008", "bits cannot"),
            ("10.0.0.7/8", "behind"),
            ("10.0.0.0/8/8", "bits cannot"),
            ("fd00::1/8", "behind"),
            ("::/129", "too many"),
            ("::ffff:10.0.0.0/104", "IPv4"),
            ("proxy.example", "address"),
        ] {
            let error = text.parse::<Network>().unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
        let many = vec!["10.0.0.0/8".parse().unwrap(); MAX_TRUSTED + 1];
        assert!(TrustedPeers::new(many).unwrap_err().to_string().contains("65"));
    }

    #[test]
    fn only_a_trusted_peer_is_believed_and_only_as_far_as_trust_goes() {
        let peers = trusted(&["10.0.0.0/8"]);
        let client = |peer: &str, lines: &[&str]| peers.client(address(peer), &head(lines)).unwrap();
        let spoofed = ["X-Forwarded-For: 1.2.3.4"];
        assert_eq!(client("8.8.8.8", &spoofed), address("8.8.8.8"), "a stranger's word is not looked at");
        assert_eq!(client("8.8.8.8", &["X-Forwarded-For: nonsense"]), address("8.8.8.8"));
        assert_eq!(client("10.0.0.1", &[]), address("10.0.0.1"));
        assert_eq!(client("10.0.0.1", &spoofed), address("1.2.3.4"));
        // What the client itself sent stands first, and is not believed.
        assert_eq!(client("10.0.0.1", &["X-Forwarded-For: 6.6.6.6, 1.2.3.4, 10.9.9.9"]), address("1.2.3.4"));
        assert_eq!(
            client("10.0.0.1", &["X-Forwarded-For: 6.6.6.6", "X-Forwarded-For: 1.2.3.4"]),
            address("1.2.3.4")
        );
        assert_eq!(client("10.0.0.1", &["X-Forwarded-For: 10.1.1.1, 10.2.2.2"]), address("10.1.1.1"));
        assert_eq!(client("10.0.0.1", &["X-Forwarded-For: 1.2.3.4:567"]), address("1.2.3.4"));
        assert_eq!(client("10.0.0.1", &["X-Forwarded-For: [2001:db8::1]:567"]), address("2001:db8::1"));
        assert_eq!(client("10.0.0.1", &["X-Forwarded-For: [2001:db8::1]"]), address("2001:db8::1"));
        assert_eq!(client("10.0.0.1", &["X-Forwarded-For: ::ffff:1.2.3.4"]), address("1.2.3.4"));
    }

    #[test]
    fn a_trusted_peer_that_says_nonsense_or_too_much_is_refused() {
        let peers = trusted(&["10.0.0.0/8"]);
        let refused = |line: &str| peers.client(address("10.0.0.1"), &head(&[line])).unwrap_err();
        for line in [
            "",
            "unknown",
            "1.2.3.4,",
            ",",
            "1.2.3",
            "1.2.3.4 5.6.7.8",
            "[1.2.3.4]",
            "1.2.3.4:99999",
            "for=1.2.3.4",
        ] {
            assert_eq!(refused(&format!("X-Forwarded-For: {line}")).status(), 400, "{line}");
        }
        let list = |count| format!("X-Forwarded-For: {}", vec!["1.2.3.4"; count].join(","));
        assert!(peers.client(address("10.0.0.1"), &head(&[&list(MAX_FORWARDED)])).is_ok());
        assert!(refused(&list(MAX_FORWARDED + 1)).to_string().contains("16"));
    }

    proptest! {
        #[test]
        fn a_network_holds_exactly_the_addresses_that_share_its_bits(network: u32, bits in 0..=32_u8, other: u32) {
            let mask = u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0);
            let text = format!("{}/{bits}", std::net::Ipv4Addr::from_bits(network & mask));
            let parsed: Network = text.parse().unwrap();
            prop_assert_eq!(parsed.to_string(), text);
            prop_assert!(parsed.contains(std::net::Ipv4Addr::from_bits(network).into()));
            let inside = (network ^ other) & mask == 0;
            prop_assert_eq!(parsed.contains(std::net::Ipv4Addr::from_bits(other).into()), inside);
        }

        #[test]
        fn no_line_makes_the_reader_panic(line in "[ -~]{0,200}") {
            let _ = trusted(&["10.0.0.0/8"]).client(address("10.0.0.1"), &head(&[&format!("X-Forwarded-For: {line}")]));
        }
    }
}
