//! What a server asks for when it refuses: the header `WWW-Authenticate`.

use std::collections::BTreeMap;

/// Most parameters of a challenge that are read.
const MAX_PARAMETERS: usize = 16;

/// One demand for credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Challenge {
    /// Name and password with every request.
    Basic,
    /// A bearer key, which the server at `realm` gives out.
    Bearer {
        /// Address of the server that gives out keys.
        realm: String,
        /// What the key is for, as the registry calls itself.
        service: Option<String>,
        /// What the key is to allow.
        scope: Option<String>,
    },
}

impl Challenge {
    /// Reads one header's value; none where it is of another kind or damaged.
    pub fn parse(header: &str) -> Option<Self> {
        let (scheme, rest) = header.trim().split_once(' ').unwrap_or((header.trim(), ""));
        if scheme.eq_ignore_ascii_case("basic") {
            return Some(Challenge::Basic);
        }
        if !scheme.eq_ignore_ascii_case("bearer") {
            return None;
        }
        let mut parameters = parameters(rest)?;
        let realm = parameters.remove("realm")?;
        Some(Challenge::Bearer {
            realm,
            service: parameters.remove("service"),
            scope: parameters.remove("scope"),
        })
    }
}

/// `name="value", name=value`; commas inside quotes belong to the value.
fn parameters(mut text: &str) -> Option<BTreeMap<String, String>> {
    let mut parameters = BTreeMap::new();
    loop {
        text = text.trim_start_matches([' ', ',']);
        if text.is_empty() {
            return Some(parameters);
        }
        if parameters.len() == MAX_PARAMETERS {
            return None;
        }
        let (name, rest) = text.split_once('=')?;
        let (value, rest) = match rest.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"')?,
            None => rest.split_once(',').unwrap_or((rest, "")),
        };
        parameters.insert(name.trim().to_ascii_lowercase(), value.to_owned());
        text = rest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn challenges_are_read() {
        assert_eq!(Challenge::parse("Basic realm=\"x\""), Some(Challenge::Basic));
        assert_eq!(Challenge::parse("basic"), Some(Challenge::Basic));
        let bearer = Challenge::Bearer {
            realm: "https://auth.example.org/key".to_owned(),
            service: Some("registry.example.org".to_owned()),
            scope: Some("repository:a/b:pull,push".to_owned()),
        };
        for text in [
            "Bearer realm=\"https://auth.example.org/key\",service=\"registry.example.org\",scope=\"repository:a/b:pull,push\"",
            "bearer  scope=\"repository:a/b:pull,push\", Realm=\"https://auth.example.org/key\", service=registry.example.org",
        ] {
            assert_eq!(Challenge::parse(text), Some(bearer.clone()), "{text}");
        }
    }

    #[test]
    fn damaged_challenges_are_none() {
        let many = format!("Bearer realm=\"x\"{}", (0..50).map(|n| format!(",a{n}=b")).collect::<String>());
        for text in [
            "",
            "Digest realm=\"x\"",
            "Bearer",
            "Bearer realm",
            "Bearer realm=\"x",
            "Bearer service=x",
            &many,
        ] {
            assert_eq!(Challenge::parse(text), None, "{text}");
        }
    }
}
