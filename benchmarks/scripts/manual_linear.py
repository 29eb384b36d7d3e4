# Logistic regression written out by hand on the breast cancer data.
import torch
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import StandardScaler

dtype = torch.float
device = torch.device("cuda:0") if torch.cuda.is_available() else torch.device("cpu")

X, y = load_breast_cancer(return_X_y=True)
X = torch.tensor(StandardScaler().fit_transform(X), device=device, dtype=dtype)
y = torch.tensor(y, device=device, dtype=dtype)

hidden = 64
w1 = torch.randn(X.shape[1], hidden, device=device, dtype=dtype, requires_grad=True)
b1 = torch.zeros(hidden, device=device, dtype=dtype, requires_grad=True)
w2 = torch.randn(hidden, device=device, dtype=dtype, requires_grad=True)

learning_rate = 1e-2
for t in range(200):
    h = (X @ w1 + b1).clamp(min=0)
    logits = h @ w2 / hidden ** 0.5
    loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, y)
    if t % 50 == 49:
        print(t, loss.item())
    loss.backward()
    with torch.no_grad():
        w1 -= learning_rate * w1.grad
        b1 -= learning_rate * b1.grad
        w2 -= learning_rate * w2.grad
        w1.grad = None
        b1.grad = None
        w2.grad = None

accuracy = ((logits > 0).float() == y).float().mean()
print(f"Result: loss {loss:.4f}, accuracy {accuracy:.1%}, |w2| = {w2.norm().item():.2f}")
