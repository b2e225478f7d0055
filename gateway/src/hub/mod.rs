//! The hub: where workers and backbones meet.
pub mod books;
pub mod door;
pub mod filing;
