//! The systemd units and kernel settings: read as they are shipped, and checked by systemd itself where it is there.

#![allow(clippy::unwrap_used)] // a test that unwraps fails, which is what it should do

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

const UNITS: [&str; 5] = ["edge", "hub", "settle", "ledger", "worker"];

fn packaging(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging").join(path)
}

fn unit(name: &str) -> String {
    fs::read_to_string(packaging(&format!("systemd/kvasir-{name}.service"))).unwrap()
}

#[test]
fn every_service_is_confined_and_is_given_longer_to_stop_than_it_takes() {
    for name in UNITS {
        let unit = unit(name);
        for line in [
            "DynamicUser=yes",
            "NoNewPrivileges=yes",
            "ProtectSystem=strict",
            "ProtectHome=yes",
            "PrivateTmp=yes",
            "KillSignal=SIGTERM",
            "RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX AF_NETLINK",
        ] {
            assert!(unit.lines().any(|found| found == line), "{name}: {line}");
        }
        let stop = unit.lines().find_map(|line| line.strip_prefix("TimeoutStopSec=")?.strip_suffix('s'));
        let drain = match name {
            "edge" => kvasir_gateway::edge::DRAIN_TIME,
            "hub" => kvasir_gateway::hub::DRAIN_TIME + kvasir_gateway::hub::FILE_TIME,
            _ => std::time::Duration::ZERO,
        };
        let stop = stop.unwrap().parse::<u64>().unwrap();
        assert!(stop > drain.as_secs(), "{name}");
        let reloads = unit.contains("ExecReload=/bin/kill -HUP $MAINPID");
        assert_eq!(reloads, ["edge", "hub"].contains(&name), "{name}: elsewhere a hangup ends the program");
        assert_eq!(unit.contains("\nNotifyAccess=all\n"), reloads, "{name}: who hands over says so");
        let writes = unit.contains("StateDirectory=");
        assert_eq!(writes, name != "edge", "{name}: only the edge has nothing to keep");
    }
}

#[test]
fn an_edge_with_acme_keeps_what_it_is_issued_and_asks_for_no_files() {
    let drop_in = fs::read_to_string(packaging("systemd/kvasir-edge.service.d/acme.conf")).unwrap();
    let lines: Vec<&str> = drop_in.lines().collect();
    let at =
        |line: &str| lines.iter().position(|found| *found == line).unwrap_or_else(|| panic!("no {line}"));
    // What the unit says is dropped before the edge's key is said again.
    assert!(at("LoadCredential=") < at("LoadCredential=edge.key:/etc/kvasir/edge.key"));
    assert!(unit("edge").contains("LoadCredential=edge.key:/etc/kvasir/edge.key\n"));
    at("StateDirectory=kvasir-edge");
    for name in ["KVASIR_GATEWAY_CERTIFICATE", "KVASIR_GATEWAY_CERTIFICATE_KEY"] {
        let dropped = lines.iter().find_map(|line| line.strip_prefix("UnsetEnvironment=")).unwrap();
        assert!(dropped.split(' ').any(|found| found == name), "{name}");
    }
}

#[test]
fn a_renewed_certificate_is_read_without_a_restart() {
    // Credentials are copied at the start.
    let unit = unit("edge");
    let handed_over: Vec<&str> =
        unit.lines().filter_map(|line| line.strip_prefix("LoadCredential=")).collect();
    assert_eq!(handed_over, ["edge.key:/etc/kvasir/edge.key"]);
    for variable in ["KVASIR_GATEWAY_CERTIFICATE=", "KVASIR_GATEWAY_CERTIFICATE_KEY="] {
        let path =
            unit.lines().find_map(|line| line.strip_prefix("Environment=")?.strip_prefix(variable)).unwrap();
        assert!(path.starts_with("/etc/kvasir/tls/"), "{variable}{path}");
    }
    // Who may read them is there before the service.
    let user = unit.lines().find_map(|line| line.strip_prefix("User=")).unwrap();
    let users = fs::read_to_string(packaging("sysusers/kvasir-edge.conf")).unwrap();
    assert!(users.lines().any(|line| line.starts_with(&format!("u {user} "))), "{users}");
}

#[test]
fn every_kernel_setting_has_a_reason_in_front_of_it() {
    let text = fs::read_to_string(packaging("sysctl/60-kvasir.conf")).unwrap();
    let mut settings = 0;
    for block in text.split("\n\n").filter(|block| block.lines().any(|line| !line.starts_with('#'))) {
        assert!(block.starts_with("# "), "{block}");
        for line in block.lines().filter(|line| !line.starts_with('#')) {
            let (name, value) = line.split_once(" = ").unwrap();
            assert!(name.starts_with("net.") && !value.is_empty(), "{line}");
            settings += 1;
        }
    }
    assert!(settings >= 5, "the file was read");
}

#[test]
fn systemd_finds_nothing_to_object_to() {
    if Command::new("systemd-analyze").arg("--version").output().is_err() {
        eprintln!("skipped: systemd-analyze is not installed here");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut verify = Command::new("systemd-analyze");
    verify.arg("verify");
    for name in UNITS {
        // The programs are not installed where tests run.
        let unit = unit(name).replace("ExecStart=/usr/bin/", "ExecStart=/bin/true ");
        let path = folder.path().join(format!("kvasir-{name}.service"));
        fs::write(&path, unit).unwrap();
        verify.arg(path);
    }
    let output = verify.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && !said.contains("kvasir-"), "{said}");
}
