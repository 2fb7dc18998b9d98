//! The pages for people in a real browser: what operators do there, and how the pages look.

mod first_minute;
mod inspection;
mod looks;
mod open_page;
mod operators;
