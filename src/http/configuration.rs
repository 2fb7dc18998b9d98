//! The configuration as it was read, for the page that shows it: every option with its value and origin. A value that
//! may be a secret is left out.

/// The options of the file that was read, in the order of their names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShownConfiguration {
    /// `None` if there is no file.
    pub file: Option<String>,
    pub options: Vec<ShownOption>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShownOption {
    /// The path of the option as the file writes it: `kind[0].timeout`.
    pub path: String,
    pub value: ShownValue,
    pub origin: ValueOrigin,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShownValue {
    /// The value as TOML.
    Text(String),
    /// The value may be a secret, so it is not shown.
    Hidden,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueOrigin {
    Default,
    File,
    Environment,
}

impl ValueOrigin {
    pub fn as_str(self) -> &'static str {
        match self {
            ValueOrigin::Default => "default",
            ValueOrigin::File => "file",
            ValueOrigin::Environment => "environment",
        }
    }
}

impl ShownConfiguration {
    /// The text of an option, without quotation marks; `None` if it is unknown or hidden.
    pub fn text_of(&self, path: &str) -> Option<&str> {
        let option = self.options.iter().find(|option| option.path == path)?;
        match &option.value {
            ShownValue::Text(text) => Some(text.trim_matches('"')),
            ShownValue::Hidden => None,
        }
    }
}
