//! A table of which every instance holds a copy. An instance reads the version of the table, and the documents only
//! if the version differs from its copy's. A change is decided from the copy, and written only if the version is
//! still the same.
//!
//! The copy is held as a view, which is built once for each version.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::newest::NewestCopy;
use crate::store::{ChangeSet, Documents, EngineError, MAX_CHANGES, Result, Table, TableValue};

/// The documents of a table, by their names.
pub type DocumentsByName<T> = BTreeMap<<T as TableValue>::Name, T>;

/// A change of a table.
pub struct Changed<T: TableValue> {
    /// New and changed documents.
    pub write: DocumentsByName<T>,
    pub forget: Vec<T::Name>,
    /// Other cells that are written in the same step.
    pub with: Option<ChangeSet>,
}

/// A table with the view that an instance has of it.
pub struct Collection<T: TableValue, V> {
    documents: Documents,
    known: NewestCopy<Arc<V>>,
    view: Box<dyn Fn(DocumentsByName<T>) -> V + Send + Sync>,
    /// Called with each new view, in their order.
    on_new: Box<dyn Fn(&V) + Send + Sync>,
}

impl<T: TableValue, V> Collection<T, V> {
    pub fn new(documents: Documents, view: impl Fn(DocumentsByName<T>) -> V + Send + Sync + 'static) -> Self {
        Collection { documents, known: NewestCopy::default(), view: Box::new(view), on_new: Box::new(|_| {}) }
    }

    /// Calls `on_new` with each new view.
    pub fn on_new(self, on_new: impl Fn(&V) + Send + Sync + 'static) -> Self {
        Collection { on_new: Box::new(on_new), ..self }
    }

    /// The view of the stored table.
    pub async fn current(&self) -> Result<Arc<V>> {
        Ok(self.refreshed().await?.1)
    }

    /// The last view; `None` before the first read.
    pub fn cached(&self) -> Option<Arc<V>> {
        Some(self.known.begin().known?.1)
    }

    /// Writes the change that `decide` returns for the current view, and decides again if others change the table
    /// meanwhile. `None`: there is nothing to change.
    ///
    /// # Errors
    /// The errors of `decide`; `Unavailable` after `MAX_CHANGES` concurrent changes.
    pub async fn change<E: From<EngineError>>(
        &self,
        mut decide: impl FnMut(&V) -> std::result::Result<Option<Changed<T>>, E>,
    ) -> std::result::Result<(), E> {
        let table = T::TABLE.as_str();
        for _ in 0..MAX_CHANGES {
            let (version, view) = self.refreshed().await?;
            let Some(changed) = decide(&view)? else { return Ok(()) };
            let next = format!("\"{:016x}\"", rand::random::<u64>());
            let version = version.as_ref().map(|version| version.as_bytes());
            let mut set = changed.with.unwrap_or_else(|| ChangeSet::of(self.documents.fleet()));
            set = set.has(Table::Versions, table, version).put(Table::Versions, table, Some(next.as_bytes()));
            for (name, value) in &changed.write {
                set = self.documents.put(set, name, Some(value))?;
            }
            for name in &changed.forget {
                set = self.documents.put::<T>(set, name, None)?;
            }
            if self.documents.write(&[set]).await? == [true] {
                // Readers in this process see the change at once.
                self.refreshed().await?;
                return Ok(());
            }
        }
        Err(EngineError::contended(format_args!("the table {table}")).into())
    }

    async fn refreshed(&self) -> Result<(Option<String>, Arc<V>)> {
        loop {
            let begun = self.known.begin();
            let version = self.version().await?;
            if let Some(known) = &begun.known
                && known.0 == version
            {
                return Ok(known.clone());
            }
            let contents = self.documents.of_fleet::<T>().await?;
            // The documents belong to `version` only if it has not changed meanwhile.
            if self.version().await? != version {
                continue;
            }
            let read = (version, Arc::new((self.view)(contents)));
            if self.known.keep(&begun, &read, || (self.on_new)(&read.1)) {
                return Ok(read);
            }
        }
    }

    async fn version(&self) -> Result<Option<String>> {
        let stored = self.documents.stored(Table::Versions, T::TABLE.as_str()).await?;
        Ok(stored.map(|version| String::from_utf8_lossy(&version).into_owned()))
    }
}
