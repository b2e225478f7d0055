//! Installed plugins, by digest: the trust that the operator keeps, the highest versions that were ever seen, which version is active,
//! and the history of it. It runs nothing and opens no connection.
