"""Which elements of a Jacobian or a Hessian can be nonzero, and how few products find them."""
