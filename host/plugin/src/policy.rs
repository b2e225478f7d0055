//! `policy.toml`: what the operator of this host grants. A package only requests; what it gets is the lesser of its request and
//! the policy, and a request above a policy's maximum is refused.
//!
//! Rules stand under `[default]`, `[namespace.NAME]` and `[publisher.KEYID]`; each value of a narrower rule replaces that of a
//! wider one. Where several publishers signed, the strictest of their rules counts.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::identity::KeyId;
use crate::limits::{
    MAX_POLICY_BYTES, MAX_POLICY_RULES, POLICY_DEADLINE_MS, POLICY_FUEL_PER_CALL, POLICY_MEMORY_BYTES,
    POLICY_ROWS_PER_CALL,
};
use crate::manifest::{Limits, is_word};
use crate::package::VerifiedPlugin;

/// What a policy says of one kind of plugin. What is left out is left to the wider rule.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Most linear memory of an instance in bytes, within [`POLICY_MEMORY_BYTES`]; a higher request gets this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Most fuel of a call, within [`POLICY_FUEL_PER_CALL`]; a higher request gets this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fuel_per_call: Option<u64>,
    /// Most rows in a call, within [`POLICY_ROWS_PER_CALL`]; a higher request gets this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rows_per_call: Option<u64>,
    /// Wall clock of a call in milliseconds, within [`POLICY_DEADLINE_MS`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_ms: Option<u64>,
    /// Whether its shader may run on the GPU; its WASM kernel runs in any case.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<bool>,
    /// Whether a kernel that asks for inert WASI is let through; where not, it is refused. What it asks for is not there: the
    /// sandbox of this version links no WASI and refuses whatever imports it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wasi_inert: Option<bool>,
    /// Requests above these are refused.
    #[serde(default, skip_serializing_if = "Maximum::is_empty")]
    pub maximum: Maximum,
}

/// Requests above these are refused, whatever would be granted. Each is within the range of its namesake in [`Rule`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Maximum {
    /// Bytes of linear memory of an instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Fuel of a call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fuel_per_call: Option<u64>,
    /// Rows in a call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rows_per_call: Option<u64>,
}

/// The operator's policy; the default one is what holds where there is no `policy.toml`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Policy {
    /// For every plugin.
    #[serde(default)]
    pub default: Rule,
    /// For the plugins of a namespace.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub namespace: BTreeMap<String, Rule>,
    /// For the plugins that a publisher signed.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub publisher: BTreeMap<KeyId, Rule>,
}

/// What a plugin may use on this host, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The lesser of request and policy, each by each.
    pub limits: Limits,
    /// Wall clock of one call.
    pub deadline: Duration,
    /// Whether its shader may run.
    pub gpu: bool,
    /// Whether the policy lets it ask for WASI that reaches nothing; the sandbox of this version gives none.
    pub wasi_inert: bool,
    /// How each came about, for `policy explain`.
    pub reasons: Vec<GrantReason>,
}

/// How one value of a [`Grant`] came about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrantReason {
    /// Name of the value, as in `policy.toml`.
    pub name: &'static str,
    /// What the plugin asks for; `None` where a plugin cannot ask.
    pub asked: Option<u64>,
    /// What the policy allows; a switch is 0 or 1.
    pub allowed: u64,
    /// What is granted; a switch is 0 or 1.
    pub granted: u64,
    /// The rule that allows it.
    pub source: RuleSource,
}

/// Where a value of a policy stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuleSource {
    /// Nowhere: what this program holds for right.
    BuiltIn,
    /// `[default]`.
    Default,
    /// `[namespace.<name>]`.
    Namespace(String),
    /// `[publisher.<key id>]`.
    Publisher(KeyId),
}

/// Why the policy refuses a plugin.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyRefusal {
    /// A request above a maximum.
    #[error(
        "the plugin asks for {name} = {asked}, the policy's maximum is {maximum} ({origin}); raise `maximum.{name}` in \
         policy.toml if you mean to allow it"
    )]
    AsksTooMuch {
        /// Name of the limit.
        name: &'static str,
        /// What the plugin asks for.
        asked: u64,
        /// The maximum.
        maximum: u64,
        /// Where it stands.
        origin: RuleSource,
    },
    /// It asks for inert WASI, which the policy does not allow.
    #[error(
        "the plugin asks for WASI (inert), the policy does not allow it ({origin}); this version gives WASI to no kernel, so \
         take a release that does not ask for it (`wasi_inert = true` in policy.toml lets one through that asks and imports none)"
    )]
    Wasi {
        /// Where the policy says so.
        origin: RuleSource,
    },
}

/// Why a `policy.toml` cannot be used. A policy is read whole or not at all.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// Over [`MAX_POLICY_BYTES`].
    #[error("policy.toml has {bytes} bytes, the limit is {limit}")]
    TooLarge {
        /// Bytes found.
        bytes: usize,
        /// Bytes allowed.
        limit: usize,
    },
    /// A limit that no kernel could work with, or that limits nothing.
    #[error(
        "policy.toml says {name} = {value} under {rule}: it may be {least} to {most}; leave it out for what is built in"
    )]
    OutOfRange {
        /// The table that says so: `[default.maximum]`.
        rule: String,
        /// Name of the limit.
        name: &'static str,
        /// Its value.
        value: u64,
        /// The least that it may be.
        least: u64,
        /// The most that it may be.
        most: u64,
    },
    /// Not a policy.
    #[error("policy.toml cannot be used: {reason}")]
    Malformed {
        /// What is wrong.
        reason: String,
    },
}

impl Policy {
    /// Reads `policy.toml`; unknown keys are refused, so that a typing error never loosens a limit.
    ///
    /// # Errors
    /// Where the text is too large or no policy.
    pub fn parse(text: &[u8]) -> Result<Self, PolicyError> {
        let malformed = |reason: String| PolicyError::Malformed { reason };
        if text.len() > MAX_POLICY_BYTES {
            return Err(PolicyError::TooLarge { bytes: text.len(), limit: MAX_POLICY_BYTES });
        }
        let text = std::str::from_utf8(text).map_err(|_| malformed("it is not UTF-8".to_owned()))?;
        let policy: Policy =
            toml::from_str(text).map_err(|error| malformed(error.to_string().trim_end().to_owned()))?;
        if policy.namespace.len() > MAX_POLICY_RULES || policy.publisher.len() > MAX_POLICY_RULES {
            return Err(malformed(format!("it has more than {MAX_POLICY_RULES} rules of one kind")));
        }
        if let Some(name) = policy.namespace.keys().find(|name| !is_word(name)) {
            return Err(malformed(format!("{name:?} is no namespace")));
        }
        check_ranges(&RuleSource::Default, &policy.default)?;
        for (name, rule) in &policy.namespace {
            check_ranges(&RuleSource::Namespace(name.clone()), rule)?;
        }
        for (key, rule) in &policy.publisher {
            check_ranges(&RuleSource::Publisher(*key), rule)?;
        }
        Ok(policy)
    }

    /// What `plugin` may use, or why it may not be used.
    ///
    /// # Errors
    /// The first request that is refused.
    pub fn grant(&self, plugin: &VerifiedPlugin) -> Result<Grant, PolicyRefusal> {
        granted(plugin, &self.rules(plugin, plugin.publishers().iter(), true))
    }

    /// As [`Policy::grant`], of a plugin that says it was signed by `claimed`, which nobody has verified: for each value the stricter of
    /// what those publishers get and of what an unknown one gets. Whoever forges a signature gains nothing by it.
    ///
    /// # Errors
    /// As [`Policy::grant`].
    pub fn grant_claimed(&self, plugin: &VerifiedPlugin, claimed: &[KeyId]) -> Result<Grant, PolicyRefusal> {
        granted(plugin, &self.rules(plugin, claimed.iter(), false))
    }

    fn rules<'a, 'b>(
        &'a self,
        plugin: &VerifiedPlugin,
        publishers: impl Iterator<Item = &'b KeyId>,
        proven: bool,
    ) -> Rules<'a> {
        let namespace = plugin.manifest().namespace().and_then(|name| self.namespace.get_key_value(name));
        let publishers = publishers.filter_map(|key| self.publisher.get_key_value(key)).collect();
        Rules { default: &self.default, namespace, publishers, proven }
    }
}

fn granted(plugin: &VerifiedPlugin, rules: &Rules<'_>) -> Result<Grant, PolicyRefusal> {
    let asked = plugin.manifest().limits;
    let requests = [
        ("memory_bytes", asked.memory_bytes, BUILT_IN.memory_bytes),
        ("fuel_per_call", asked.fuel_per_call, BUILT_IN.fuel_per_call),
        ("rows_per_call", u64::from(asked.rows_per_call), BUILT_IN.rows_per_call),
    ];
    let (mut reasons, mut granted) = (Vec::new(), [0; 3]);
    for (index, (name, asked, built_in)) in requests.into_iter().enumerate() {
        let (maximum, origin) = rules.least(|rule| number(&rule.maximum, name), built_in);
        if asked > maximum {
            return Err(PolicyRefusal::AsksTooMuch { name, asked, maximum, origin });
        }
        let (allowed, source) = rules.least(|rule| number(rule, name), built_in);
        granted[index] = asked.min(allowed);
        reasons.push(GrantReason { name, asked: Some(asked), allowed, granted: granted[index], source });
    }
    let (deadline, source) = rules.least(|rule| rule.deadline_ms, BUILT_IN.deadline_ms);
    reasons.push(GrantReason {
        name: "deadline_ms",
        asked: None,
        allowed: deadline,
        granted: deadline,
        source,
    });
    let mut switch = |name, asked: bool, allowed: bool, source| {
        let granted = asked && allowed;
        let (asked, allowed) = (Some(u64::from(asked)), u64::from(allowed));
        reasons.push(GrantReason { name, asked, allowed, granted: u64::from(granted), source });
        granted
    };
    let (gpu, source) = rules.least(|rule| rule.gpu.map(u64::from), 1);
    let gpu = switch("gpu", plugin.shader().is_some(), gpu == 1, source);
    let (wasi, source) = rules.least(|rule| rule.wasi_inert.map(u64::from), 0);
    if plugin.manifest().wasi_inert && wasi == 0 {
        return Err(PolicyRefusal::Wasi { origin: source });
    }
    let wasi_inert = switch("wasi_inert", plugin.manifest().wasi_inert, wasi == 1, source);
    let limits = Limits {
        memory_bytes: granted[0],
        fuel_per_call: granted[1],
        rows_per_call: u32::try_from(granted[2]).unwrap_or(u32::MAX),
    };
    Ok(Grant { limits, deadline: Duration::from_millis(deadline), gpu, wasi_inert, reasons })
}

/// Refuses a rule that says a limit out of its range.
fn check_ranges(source: &RuleSource, rule: &Rule) -> Result<(), PolicyError> {
    let table = source.to_string();
    let deadline = [("deadline_ms", rule.deadline_ms)];
    let maximum = format!("{}.maximum]", table.trim_end_matches(']'));
    for (table, numbers) in
        [(&table, rule.numbers().as_slice()), (&table, &deadline), (&maximum, &rule.maximum.numbers())]
    {
        for &(name, value) in numbers {
            let range = range(name);
            if let Some(value) = value.filter(|value| !range.contains(value)) {
                let (least, most) = range.into_inner();
                return Err(PolicyError::OutOfRange { rule: table.clone(), name, value, least, most });
            }
        }
    }
    Ok(())
}

/// What the limit `name` may be.
fn range(name: &str) -> RangeInclusive<u64> {
    match name {
        "memory_bytes" => POLICY_MEMORY_BYTES,
        "fuel_per_call" => POLICY_FUEL_PER_CALL,
        "rows_per_call" => POLICY_ROWS_PER_CALL,
        _ => POLICY_DEADLINE_MS,
    }
}

/// What holds where no rule says anything. A request above these is no kernel's.
const BUILT_IN: BuiltIn = BuiltIn {
    memory_bytes: 4 << 30,
    fuel_per_call: 10_000_000_000_000,
    rows_per_call: 65_536,
    deadline_ms: 10_000,
};

struct BuiltIn {
    /// All that 32-bit WebAssembly can address.
    memory_bytes: u64,
    /// About an hour of one core.
    fuel_per_call: u64,
    rows_per_call: u64,
    deadline_ms: u64,
}

/// The rules that speak of one plugin.
struct Rules<'a> {
    default: &'a Rule,
    namespace: Option<(&'a String, &'a Rule)>,
    publishers: Vec<(&'a KeyId, &'a Rule)>,
    /// Whether it is known that these publishers signed. Where it is not, their rules can only narrow.
    proven: bool,
}

impl Rules<'_> {
    /// The value that `pick` takes from the narrowest rule that has it, the least of several publishers'.
    fn least(&self, pick: impl Fn(&Rule) -> Option<u64>, built_in: u64) -> (u64, RuleSource) {
        let of_publishers = self
            .publishers
            .iter()
            .filter_map(|(key, rule)| Some((pick(rule)?, RuleSource::Publisher(**key))))
            .min_by_key(|(value, _)| *value);
        let wider = || {
            self.namespace
                .and_then(|(name, rule)| Some((pick(rule)?, RuleSource::Namespace(name.clone()))))
                .or_else(|| Some((pick(self.default)?, RuleSource::Default)))
                .unwrap_or((built_in, RuleSource::BuiltIn))
        };
        match of_publishers {
            Some(own) if self.proven => own,
            Some(own) => std::cmp::min_by_key(own, wider(), |(value, _)| *value),
            None => wider(),
        }
    }
}

/// The three limits that a plugin can ask for, by name.
trait Numbers {
    fn numbers(&self) -> [(&'static str, Option<u64>); 3];
}

impl Numbers for Rule {
    fn numbers(&self) -> [(&'static str, Option<u64>); 3] {
        [
            ("memory_bytes", self.memory_bytes),
            ("fuel_per_call", self.fuel_per_call),
            ("rows_per_call", self.rows_per_call),
        ]
    }
}

impl Numbers for Maximum {
    fn numbers(&self) -> [(&'static str, Option<u64>); 3] {
        [
            ("memory_bytes", self.memory_bytes),
            ("fuel_per_call", self.fuel_per_call),
            ("rows_per_call", self.rows_per_call),
        ]
    }
}

fn number(of: &impl Numbers, name: &str) -> Option<u64> {
    of.numbers().into_iter().find(|(known, _)| *known == name)?.1
}

impl Maximum {
    fn is_empty(&self) -> bool {
        *self == Maximum::default()
    }
}

impl fmt::Display for RuleSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RuleSource::BuiltIn => f.write_str("built in"),
            RuleSource::Default => f.write_str("[default]"),
            RuleSource::Namespace(name) => write!(f, "[namespace.{name}]"),
            RuleSource::Publisher(key) => write!(f, "[publisher.{key}]"),
        }
    }
}
