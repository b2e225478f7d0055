//! The commands that do one thing and end: ticket, certificate, edge-key.

use kvasir_link::unix_now;
use kvasir_wire::ticket::TicketLimits;
use serde_json::json;

use super::{CertificateArgs, EdgeKeyArgs, TicketArgs};
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
        println!("{report}");
    } else {
        println!("{}", ticket.to_text());
    }
    Ok(())
}

pub(super) fn certificate(args: &CertificateArgs, json: bool) -> anyhow::Result<()> {
    let paths = certificate::make(&args.out, &Names::parse(&args.name)?, args.replace)?;
    if json {
        println!(
            "{}",
            json!({"authority": paths.authority, "certificate": paths.certificate, "key": paths.key})
        );
    } else {
        println!("authority    {}  (workers: --ca)", paths.authority.display());
        println!("certificate  {}  (edge: --certificate)", paths.certificate.display());
        println!("key          {}  (edge: --certificate-key)", paths.key.display());
    }
    Ok(())
}

pub(super) fn edge_key(args: &EdgeKeyArgs, json: bool) -> anyhow::Result<()> {
    credentials::make_edge_key(&args.file, args.replace)?;
    if json {
        println!("{}", json!({"edge_key": args.file}));
    } else {
        println!("wrote {}", args.file.display());
    }
    Ok(())
}
