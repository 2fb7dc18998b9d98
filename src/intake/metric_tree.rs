//! The pointers of metrics as a tree: only its branches are read from a payload.

/// A node of a tree.
pub(super) type NodeIndex = usize;

/// The node of the whole payload.
pub(super) const ROOT: NodeIndex = 0;

#[derive(Debug)]
pub(super) struct MetricTree {
    nodes: Vec<MetricNode>,
    metrics: usize,
}

#[derive(Debug, Default)]
struct MetricNode {
    /// The nodes below this one, by the name of a member or the index in an array.
    children: Vec<(String, NodeIndex)>,
    /// The metrics of this node.
    metrics: Vec<u8>,
}

impl MetricTree {
    /// The tree of these pointers; a metric has the index of its pointer.
    pub fn new<'a>(pointers: impl Iterator<Item = &'a [String]>) -> MetricTree {
        let mut tree = MetricTree { nodes: vec![MetricNode::default()], metrics: 0 };
        for (metric, pointer) in pointers.enumerate() {
            let mut at = ROOT;
            for token in pointer {
                at = match tree.child(at, token) {
                    Some(child) => child,
                    None => {
                        let child = tree.nodes.len();
                        tree.nodes.push(MetricNode::default());
                        tree.nodes[at].children.push((token.clone(), child));
                        child
                    }
                };
            }
            tree.nodes[at].metrics.push(metric as u8); // There are few, see the configuration.
            tree.metrics += 1;
        }
        tree
    }

    /// How many metrics there are.
    pub fn metrics(&self) -> usize {
        self.metrics
    }

    /// The metrics of a node.
    pub fn metrics_at(&self, node: NodeIndex) -> &[u8] {
        &self.nodes[node].metrics
    }

    pub fn child(&self, node: NodeIndex, name: &str) -> Option<NodeIndex> {
        let children = &self.nodes[node].children;
        children.iter().find(|(known, _)| known == name).map(|(_, child)| *child)
    }
}
