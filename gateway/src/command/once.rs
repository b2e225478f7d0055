//! The commands that do one thing and end: ticket, certificate, edge-key.

use anyhow::Context as _;
use kvasir_link::unix_now;
use kvasir_wire::ticket::TicketLimits;
use serde_json::json;

use super::{CertificateArgs, EdgeKeyArgs, TicketArgs, print_line};
use crate::{
    certificate::{self, Names},
    config::{HubTable, needed},
    credentials::{self, TicketOrder, read_edge_key, read_secret_key},
};

pub(super) fn ticket(args: TicketArgs, file: HubTable, json: bool) -> anyhow::Result<()> {
    let hub_key = needed(args.hub_key, file.hub_key, "--hub-key", "KVASIR_GATEWAY_HUB_KEY", "hub.hub_key")?;
    let edge_key =
        needed(args.edge_key, file.edge_key, "--edge-key", "KVASIR_GATEWAY_EDGE_KEY", "hub.edge_key")?;
    let network = needed(args.network, file.network, "--network", "KVASIR_GATEWAY_NETWORK", "hub.network")?;
    let order = TicketOrder {
        network,
        role: args.role.into(),
        holder: args.holder,
        wallet: args.wallet,
        plugins: args.plugin,
        publishers: args.publisher.iter().map(|publisher| publisher.0).collect(),
        limits: TicketLimits { sessions: args.sessions, session_bytes: args.session_bytes },
        lifetime: args.expires,
    };
    let ticket =
        credentials::issue(order, &read_secret_key(&hub_key)?, &read_edge_key(&edge_key)?, unix_now())?;
    if json {
        let claims = ticket.claims();
        let report = json!({
            "ticket": ticket.to_text(),
            "digest": ticket.digest().to_string(),
            "role": claims.role.to_string(),
            "network": claims.network,
            "holder": claims.holder.to_string(),
            "hub": claims.hub.to_string(),
            "expires": claims.expires,
        });
        print_line(&report.to_string())
    } else {
        print_line(&ticket.to_text())
    }
}

pub(super) fn certificate(args: &CertificateArgs, json: bool) -> anyhow::Result<()> {
    let paths = certificate::make(&args.out, &Names::parse(&args.name)?, args.replace)?;
    if json {
        let report = json!({
            "authority": paths.authority.display().to_string(),
            "certificate": paths.certificate.display().to_string(),
            "key": paths.key.display().to_string(),
        });
        print_line(&report.to_string())
    } else {
        print_line(&format!(
            "authority    {}  (workers: --ca)\ncertificate  {}  (edge: --certificate)\n\
             key          {}  (edge: --certificate-key)",
            paths.authority.display(),
            paths.certificate.display(),
            paths.key.display(),
        ))
    }
    .context("the files were made")
}

pub(super) fn edge_key(args: &EdgeKeyArgs, json: bool) -> anyhow::Result<()> {
    credentials::make_edge_key(&args.file, args.replace)?;
    if json {
        print_line(&json!({"edge_key": args.file.display().to_string()}).to_string())
    } else {
        print_line(&format!("wrote {}", args.file.display()))
    }
    .context("the key was made")
}
