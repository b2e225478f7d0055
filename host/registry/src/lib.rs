//! Carries plugin packages to and from OCI image layouts and registries. What comes back is bytes that nobody has verified yet.
