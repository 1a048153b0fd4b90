"""Derivatives: which elements depend on which, and what that saves in Jacobians and Hessians."""
