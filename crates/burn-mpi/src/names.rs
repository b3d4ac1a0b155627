//! PyTorch's name of a module's tensor, and the type that holds it, from the calls
//! by which Burn's visitors enter and leave modules.

/// Where a visitor is in a module.
#[derive(Default)]
pub(crate) struct ModulePath {
    names: Vec<String>,
    containers: Vec<String>,
}

impl ModulePath {
    /// Enters the field `name` of `container`, as `Struct:Linear`.
    pub fn enter(&mut self, name: &str, container: &str) {
        // An enum's variant is no layer: PyTorch's names do not have it.
        if !container.starts_with("Enum:") {
            self.names.push(name.to_owned());
        }
        self.containers.push(container.to_owned());
    }

    /// Leaves what was entered last.
    pub fn exit(&mut self, container: &str) {
        if !container.starts_with("Enum:") {
            self.names.pop();
        }
        self.containers.pop();
    }

    /// The tensor's name, as `conv1.weight`.
    pub fn name(&self) -> String {
        self.names.join(".")
    }

    /// Whether the tensor is the weight of Burn's `Linear`: the type decides, under
    /// whatever name a program keeps the layer.
    pub fn is_linear_weight(&self) -> bool {
        self.containers.last().is_some_and(|container| container == "Struct:Linear")
            && self.names.last().is_some_and(|name| name == "weight")
    }
}
