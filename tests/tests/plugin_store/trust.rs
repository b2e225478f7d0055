//! Whom a host trusts and whom no more, and what the program says of what follows from that.

use ed25519_dalek::SigningKey;
use kvasir_operate::key_file;
use kvasir_plugin::KeyId;

use crate::{Home, text};

#[test]
fn naming_a_key_for_a_namespace_says_whom_that_shuts_out() {
    let home = Home::new();
    let own = key_file::load(&home.path("config/keys/publisher.key")).unwrap().public().to_string();
    let theirs = home.reports(&["key", "new", text(&home.path("theirs.key"))]);
    let theirs = theirs["public"].as_str().unwrap();
    let added = home.reports(&["plugin", "trust", "add", theirs, "--namespace", "kvasir"]);
    let [shut_out] = &added["shut_out"].as_array().unwrap()[..] else { panic!("{added}") };
    assert!(shut_out.as_str().unwrap().starts_with(&own), "{added}");
    assert!(added["active_is_refused"].as_str().unwrap().contains("signed by 0 keys"), "{added}");
}

#[test]
fn taking_a_namespaces_last_key_away_says_who_may_publish_there_then() {
    let home = Home::new();
    let own = key_file::load(&home.path("config/keys/publisher.key")).unwrap().public().to_string();
    let theirs = home.reports(&["key", "new", text(&home.path("theirs.key"))]);
    let theirs = theirs["public"].as_str().unwrap();
    home.reports(&["plugin", "trust", "add", theirs, "--namespace", "acme"]);
    let removed = home.reports(&["plugin", "trust", "remove", theirs]);
    assert_eq!(removed["removed_from"], serde_json::json!(["publisher/acme"]));
    let [opened] = &removed["opened"].as_array().unwrap()[..] else { panic!("{removed}") };
    assert_eq!(opened["namespace"], "acme");
    assert!(opened["to"][0].as_str().unwrap().starts_with(&own), "{removed}");

    // And a key that others hold a namespace with opens nothing.
    let second = home.reports(&["key", "new", text(&home.path("second.key"))]);
    for key in [theirs, second["public"].as_str().unwrap()] {
        home.reports(&["plugin", "trust", "add", key, "--namespace", "acme"]);
    }
    let removed = home.reports(&["plugin", "trust", "remove", theirs]);
    assert_eq!(removed["opened"], serde_json::json!([]));
}

#[test]
fn a_key_that_is_trusted_no_more_can_still_be_revoked_by_its_id_and_a_root_key_cannot() {
    let home = Home::new();
    let foreign = SigningKey::from_bytes(&[9; 32]).verifying_key();
    let public = kvasir_plugin::PublisherKey { key: foreign, name: None }.line();
    home.reports(&["plugin", "trust", "add", &public, "--namespace", "acme"]);
    home.reports(&["plugin", "trust", "remove", &public]);
    let id = KeyId::of(&foreign).to_string();
    let revoked = home.reports(&["plugin", "revoke", &id]);
    assert_eq!(revoked["revoked"], format!("key {id} and package {id}"));
    home.refuses(&["plugin", "trust", "add", &public, "--namespace", "acme"], &["is revoked"]);
    assert_eq!(home.reports(&["plugin", "revoke", &id])["new"], false);

    let root = key_file::load(&home.path("config/keys/root.key")).unwrap();
    let id = KeyId::of(&root.signing_key().verifying_key()).to_string();
    for name in [root.public().to_string(), id] {
        home.refuses(&["plugin", "revoke", &name], &["role", "kvasir plugin trust rotate"]);
    }
    home.run();
}
