"""The embedded houses: plan, furniture, boxes, viewpoints, rays, features, routes and instructions."""
