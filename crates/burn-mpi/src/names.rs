//! PyTorch's name of a module's tensor, and the type that holds it, from the calls
//! by which Burn's visitors enter and leave modules.

/// A visitor's path in a module.
#[derive(Default)]
pub(crate) struct ModulePath {
    names: Vec<String>,
    containers: Vec<String>,
}

impl ModulePath {
    /// Enters the field `name` of `container`, such as `Struct:Linear`.
    pub fn enter(&mut self, name: &str, container: &str) {
        // An enum's variant is not a layer: PyTorch's names omit it.
        if !container.starts_with("Enum:") {
            self.names.push(name.to_owned());
        }
        self.containers.push(container.to_owned());
    }

    /// Leaves the last entered module.
    pub fn exit(&mut self, container: &str) {
        if !container.starts_with("Enum:") {
            self.names.pop();
        }
        self.containers.pop();
    }

    /// The tensor's name, such as `conv1.weight`.
    pub fn name(&self) -> String {
        self.names.join(".")
    }

    /// Whether the tensor is the weight of Burn's `Linear`, by type and not by
    /// field name.
    pub fn is_linear_weight(&self) -> bool {
        self.containers.last().is_some_and(|container| container == "Struct:Linear")
            && self.names.last().is_some_and(|name| name == "weight")
    }
}
